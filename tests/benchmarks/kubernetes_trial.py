"""Pods come and go before an Envoy, a HAProxy and an nginx under load: `python -m tests.benchmarks.kubernetes_trial`.

For each change: how long until each proxy sends requests to exactly the pods that should have them, and how many
requests failed on the way. `--away SECONDS`: how long the API server is away.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.e2e.support.client import Client
from tests.e2e.support.kubernetes import Deployment, deployment, three
from tests.e2e.support.waiting import eventually

_RATE = 100
"""Requests a second through each proxy."""


def _wanted(client: Client, pods: Deployment) -> bool:
    return set(client.load(4 * len(pods.pods)).by_replica) == pods.in_use


def follows(name: str, clients: dict[str, Client], pods: Deployment, change: Callable[[], object]) -> None:
    """Do the change, and print how long each proxy takes to send requests to exactly the pods that should have them."""
    change()
    changed, took = time.monotonic(), {}
    waiting = dict(clients)
    while waiting and time.monotonic() - changed < 30:
        for proxy in [proxy for proxy, client in waiting.items() if _wanted(client, pods)]:
            took[proxy] = time.monotonic() - changed
            del waiting[proxy]
    print(f"{name:40}", *(f"{proxy} {took[proxy]:.2f} s" if proxy in took else f"{proxy} NOT" for proxy in clients))


def main() -> None:
    """Run all changes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--away", type=float, default=120.0)
    away = parser.parse_args().away
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        pods = stack.enter_context(deployment(Path(directory), 3, grace=4.0))
        control, clients = stack.enter_context(three(pods))
        loads = {name: stack.enter_context(client.steady(_RATE)) for name, client in clients.items()}
        report = partial(follows, clients=clients, pods=pods)
        report("3 to 30", change=lambda: pods.start(27))
        report("30 to 3, as they terminate", change=lambda: pods.terminate(list(pods.pods)[3:]))
        time.sleep(pods.grace)
        pods.end(list(pods.pods)[3:])
        report("a rolling restart, one at a time", change=pods.roll)
        report("a node is drained", change=lambda: pods.drain("n1"))
        pods.api.away()
        time.sleep(away)
        report(f"the API server is away for {away:g} s", change=lambda: None)
        pods.api.back()
        pods.start(3)
        report("it is back, with three pods more", change=lambda: None)
        began = time.monotonic()
        pods.crowd(1000)
        eventually(lambda: control.status["snapshot"]["replicas"] == 1000 + len(pods.pods), 60)
        version = control.status["snapshot"]["version"]
        for name in ("envoy", "ha", "ng"):
            eventually(lambda name=name: control.proxies[name]["last_good"] == version, 60)
            print(f"1,000 endpoints more: {name} has them after {time.monotonic() - began:.2f} s")
        for name, load in loads.items():
            done = load.load
            print(f"{name}: {len(done.responses)} requests, {len(done.failures)} failed")


if __name__ == "__main__":
    main()

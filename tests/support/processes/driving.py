"""Helpers for tests of the control plane: Envoys of both variants, under load, while the fleet's file changes."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes.client import Steady
from tests.support.processes.control import ControlPlane, XdsEnvoy
from tests.support.processes.http1 import Request
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually

BOTH = ("delta", "sotw")
"""Node ids of `both`, for `driven(*BOTH)`."""
_ANSWERED = 60.0
"""Maximum seconds until an Envoy has closed a connection."""


@contextmanager
def both(control: ControlPlane, *, written: bool = True) -> Iterator[tuple[XdsEnvoy, XdsEnvoy]]:
    """Run an Envoy with incremental xDS and one with state-of-the-world xDS, each with the listener of its name.

    With `written`, their bootstraps come from `lbctl bootstrap`, else from the harness, and reconnect sooner.
    """
    files = {node: bootstrap_of_command(control, node) if written else None for node in BOTH}
    delta, sotw = BOTH
    with (
        control.envoy(delta, [delta], bootstrap=files[delta]) as first,
        control.envoy(sotw, [sotw], delta=False, bootstrap=files[sotw]) as second,
    ):
        yield first, second


def bootstrap_of_command(control: ControlPlane, node: str, *more: str) -> Mapping[str, Any]:
    """Return the output of `lbctl bootstrap` for this node, by the socket.

    For the node `sotw` it is changed to state-of-the-world xDS, as a user would.
    """
    with tempfile.TemporaryDirectory() as out:
        code = run(["bootstrap", "--xds", control.socket, "--node", node, *more, "-d", out])
        assert code == 0
        text = (Path(out) / "envoy.yaml").read_text()
    bootstrap: Mapping[str, Any] = yaml.safe_load(text.replace("DELTA_GRPC", "GRPC") if node == "sotw" else text)
    return bootstrap


@contextmanager
def loaded(
    envoys: Iterable[XdsEnvoy],
    rate: float = 200,
    request: Request = Request(),  # noqa: B008  a frozen value
) -> Iterator[list[Steady]]:
    """Send `rate` requests per second through each during the block. All must succeed."""
    with ExitStack() as stack:
        loads = [stack.enter_context(envoy.client().steady(rate, request)) for envoy in envoys]
        yield loads
    for load in loads:
        load.load.assert_no_failure()


def next_share(load: Steady, replica: str, seconds: float) -> float:
    """Wait for `seconds`, and return the replica's share of the requests that were sent in them."""
    began = time.monotonic()
    time.sleep(seconds)
    return load.since(began).shares().get(replica, 0.0)


def change(control: ControlPlane, fleet: Fleet, *nodes: str) -> None:
    """Write the fleet, and wait until all Envoys (or these) have accepted all of it, including removals."""
    before = control.status["snapshot"]["version"]
    control.write(fleet)
    eventually(lambda: control.status["snapshot"]["version"] != before)
    synced(control, *nodes)


def synced(control: ControlPlane, *nodes: str) -> None:
    """Wait until all running Envoys (or these) are connected, and have accepted and use everything that is currently
    published."""
    version = control.status["snapshot"]["version"]

    def all_have_it() -> bool:
        rows = control.proxies
        return all(_has(rows.get(node, {}), version) for node in nodes or control.nodes)

    eventually(all_have_it)
    for envoy in control.envoys:
        if not nodes or envoy.node in nodes:
            await_workers(envoy)


def await_workers(envoy: XdsEnvoy) -> None:
    """Wait until the Envoy thread that serves requests uses everything that its main thread has accepted before this
    call.

    The main thread queues a change for that thread before it acknowledges it. A connection that the thread has closed
    came after the change, so the thread applies the change at the latest in the same turn of its event loop.
    """
    for port in envoy.listeners.values():
        with suppress(ConnectionError), socket.create_connection((HOST, port), _ANSWERED) as connection:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                continue


def _has(row: Mapping[str, Any], version: str) -> bool:
    return (row.get("connected"), row.get("state"), row.get("last_good")) == (True, "SYNCED", version)

"""What the proofs of the control plane share: Envoys of both variants, under load, while the fleet's file changes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes.client import Steady
from tests.support.processes.control import ControlPlane, XdsEnvoy
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import eventually

BOTH = ("delta", "sotw")
"""The node ids of `both`, for `driven(*BOTH)`."""
_WORKERS = 0.2
"""Seconds. The threads of an Envoy that serve requests take a moment later what its main thread acknowledges."""


@contextmanager
def both(control: ControlPlane, *, written: bool = True) -> Iterator[tuple[XdsEnvoy, XdsEnvoy]]:
    """Run an Envoy that is served by increments and one that is served the state of the world, each with the listener
    of its name. With `written` their bootstraps are those of `lbctl bootstrap`, else the harness's, which reconnect
    sooner."""
    files = {node: bootstrap_of_command(control, node) if written else None for node in BOTH}
    delta, sotw = BOTH
    with (
        control.envoy(delta, [delta], bootstrap=files[delta]) as first,
        control.envoy(sotw, [sotw], delta=False, bootstrap=files[sotw]) as second,
    ):
        yield first, second


def bootstrap_of_command(control: ControlPlane, node: str, *more: str) -> Mapping[str, Any]:
    """Return what `lbctl bootstrap` writes for this node, by the socket. For the node `sotw` it is changed as by a
    user who wants the state of the world."""
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
    """Send so many requests a second through each, for as long as the block runs. Not one may fail."""
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
    """Writes the fleet; returns when all Envoys (or these) have accepted all of it, removals too."""
    before = control.status["snapshot"]["version"]
    control.write(fleet)
    eventually(lambda: control.status["snapshot"]["version"] != before)
    synced(control, *nodes)


def synced(control: ControlPlane, *nodes: str) -> None:
    """Waits until all Envoys that run (or these) are connected and have accepted all that is served now."""
    version = control.status["snapshot"]["version"]

    def all_have_it() -> bool:
        rows = control.proxies
        return all(_has(rows.get(node, {}), version) for node in nodes or control.nodes)

    eventually(all_have_it)
    time.sleep(_WORKERS)


def _has(row: Mapping[str, Any], version: str) -> bool:
    return (row.get("connected"), row.get("state"), row.get("last_good")) == (True, "SYNCED", version)

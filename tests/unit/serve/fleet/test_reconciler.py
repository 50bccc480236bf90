"""What the log says of a change that cannot be published: that something stays only where something is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.serve.api.events import EventLog
from lbctl.serve.fleet.history import FleetHistory, RestoredHistory
from lbctl.serve.fleet.publisher import Publisher, PublishResult
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.state.audit import AuditLog
from lbctl.serve.state.memory import MemoryStore
from lbctl.serve.state.saved import SavedState
from lbctl.targets.load import Loaded, load
from lbctl.xds.build.snapshot_cache import UnsoundError

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools: {chat: {replicas: [{address: "10.9.9.9:8000"}]}}
proxies: {edge: {kind: envoy}}
"""


class _Failing(Publisher):
    """A publisher whose refresh raises `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Metrics(), {})
        self.error = error

    async def refresh(self) -> PublishResult:
        raise self.error


def _reconciler(publisher: Publisher, paths: tuple[str, ...]) -> Reconciler:
    async def nothing(_loaded: Loaded, _built: bool) -> None:
        pass

    state = SavedState(MemoryStore(), lambda _: None)
    history = FleetHistory(paths, state, RestoredHistory())
    return Reconciler(
        paths, publisher, FleetWatcher(paths), Metrics(), state, AuditLog(state), history, nothing, EventLog()
    )


def _refresh(publisher: Publisher, path: Path, *, served: bool) -> None:
    path.write_text(FLEET)

    async def run() -> None:
        fleet = load([str(path)], Diagnostics())
        assert fleet is not None
        if served:
            await publisher.serve(fleet, "files")
        await _reconciler(publisher, (str(path),)).refresh("discovery")
        await publisher.discovery.stop()

    asyncio.run(run())


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnsoundError([Diagnostic("LB901", "no")]), "a proxy would reject the change"),
        (ValueError("a bug"), "lbctl itself failed"),
    ],
)
def test_a_change_that_fails_says_that_something_stays_only_where_something_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, message: str, served: bool
) -> None:
    _refresh(_Failing(error), tmp_path / "fleet.yaml", served=served)
    stays = "; what is served stays as it is" if served else ""
    assert caplog.records[-1].getMessage() == message + stays

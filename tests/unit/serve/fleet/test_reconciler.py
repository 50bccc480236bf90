"""A change that cannot be published, and what the log says of it; a change while the state cannot be saved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.control.overrides import Override
from lbctl.serve.api.events import EventLog
from lbctl.serve.fleet.history import FleetHistory, RestoredHistory
from lbctl.serve.fleet.publisher import Publisher, PublishResult
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.state.audit import AuditLog
from lbctl.serve.state.interface import StoreEntry
from lbctl.serve.state.memory import MemoryStore
from lbctl.serve.state.saved import SavedState
from lbctl.targets.load import Loaded, load
from lbctl.xds.build.snapshot_cache import UnsoundError

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools: {chat: {replicas: [{name: a, address: "10.9.9.9:8000"}]}}
proxies: {edge: {kind: envoy}}
"""


class _Failing(Publisher):
    """A publisher whose refresh raises `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Metrics(), {})
        self.error = error

    async def refresh(self) -> PublishResult:
        raise self.error


class _Slow(MemoryStore):
    """A store that writes nothing while `works` is not set, as a disk that stalls."""

    def __init__(self) -> None:
        super().__init__()
        self.works = asyncio.Event()
        self.works.set()

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        await self.works.wait()
        return await super().put(key, value, expected_version, epoch)


def _reconciler(publisher: Publisher, paths: tuple[str, ...], state: SavedState | None = None) -> Reconciler:
    async def nothing(_loaded: Loaded, _built: bool) -> None:
        pass

    state = state or SavedState(MemoryStore(), lambda _: None)
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


def test_a_disk_that_stalls_delays_a_save_and_no_change(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)

    async def run() -> None:
        store, publisher = _Slow(), Publisher(Metrics(), {})
        state = SavedState(store, lambda _: None)
        await state.lead(lambda _: None)
        reconciler = _reconciler(publisher, (str(path),), state)
        await reconciler.start(None)
        store.works.clear()
        publisher.set_overrides((Override("drain", "chat", "a"),))
        drained = asyncio.create_task(reconciler.refresh("an override"))
        async with asyncio.timeout(20):
            while not (publisher.served and publisher.served.composed.drains):
                await asyncio.sleep(0)
            publisher.set_overrides(())
            await reconciler.refresh("signals", save=False)
        assert publisher.served.composed.drains == {}
        assert not drained.done()
        assert await state.drains() == {}
        store.works.set()
        await drained
        assert [*await state.drains()] == [("chat", "a")]
        reconciler.save_soon()
        await reconciler.end()
        assert await state.drains() == {}
        await publisher.discovery.stop()

    asyncio.run(run())

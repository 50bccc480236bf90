"""Changes that cannot be published, their log messages, and changes while the state cannot be saved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.overrides import Override
from lbctl.serve.api.events import EventLog
from lbctl.serve.fleet.history import FleetHistory, RestoredHistory
from lbctl.serve.fleet.publisher import Publisher, PublishResult
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import FleetWatcher
from lbctl.serve.metrics.instruments import Metrics
from lbctl.store.audit import AuditLog
from lbctl.store.interface import StoreEntry
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState
from lbctl.targets.load import Loaded
from lbctl.xds.build.snapshot_cache import UnsoundError
from tests.support.fleets import fleet_of, load_fleet, write_fleet

FLEET = fleet_of(proxies={"edge": {"kind": "envoy"}})


class _Failing(Publisher):
    """A publisher whose refresh raises `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Metrics(), {})
        self.error = error

    async def refresh(self) -> PublishResult:
        raise self.error


class _Slow(MemoryStore):
    """A store that blocks writes while `works` is not set, like a stalled disk."""

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


def _refresh(publisher: Publisher, directory: Path, *, served: bool) -> None:
    fleet = load_fleet(directory, FLEET)

    async def run() -> None:
        if served:
            await publisher.serve(fleet, "files")
        await _reconciler(publisher, (str(directory / "fleet.yaml"),)).refresh("discovery")
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
def test_failed_change_is_logged_with_the_published_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, message: str, served: bool
) -> None:
    _refresh(_Failing(error), tmp_path, served=served)
    stays = "; what is served stays as it is" if served else ""
    assert caplog.records[-1].getMessage() == message + stays


def test_stalled_disk_delays_the_save_but_not_the_change(tmp_path: Path) -> None:
    path = write_fleet(tmp_path, FLEET)

    async def run() -> None:
        store, publisher = _Slow(), Publisher(Metrics(), {})
        state = SavedState(store, lambda _: None)
        await state.lead(lambda _: None)
        reconciler = _reconciler(publisher, (str(path),), state)
        await reconciler.start(None)
        store.works.clear()
        publisher.set_overrides((Override("drain", "pool", "a"),))
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
        assert [*await state.drains()] == [("pool", "a")]
        reconciler.save_soon()
        await reconciler.end()
        assert await state.drains() == {}
        await publisher.discovery.stop()

    asyncio.run(run())


def test_comments_silence_warnings_of_proxies_but_no_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_fleet(tmp_path, FLEET)
    found = (Diagnostic("LB901", "an error"), Diagnostic("LB902", "a warning", severity="warning"))
    monkeypatch.setattr("lbctl.serve.fleet.publisher.unsupported_features", lambda *_: found)
    monkeypatch.setattr("lbctl.serve.fleet.reconciler.silenced_by_comments", lambda _: lambda _item: True)

    async def run() -> None:
        publisher = Publisher(Metrics(), {})
        reconciler = _reconciler(publisher, (str(path),))
        await reconciler.start(None)
        assert reconciler.last_reload is not None
        assert [item.message for item in reconciler.last_reload.diagnostics if item in found] == ["an error"]
        await reconciler.end()
        await publisher.discovery.stop()

    asyncio.run(run())

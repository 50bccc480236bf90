"""Changes that cannot be published, their log messages, and changes while the state cannot be saved."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.overrides import Override
from lbctl.serve.fleet.inputs import FleetInputs
from lbctl.serve.fleet.publisher import Publisher, PublishResult
from lbctl.serve.metrics.instruments import Metrics
from lbctl.store.interface import StoreEntry
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState
from lbctl.xds.build.snapshot_cache import UnsoundError
from tests.support.fleets import fleet_of, load_fleet, write_fleet
from tests.support.publishing import Publishing, open_nothing

FLEET = fleet_of(proxies={"edge": {"kind": "envoy"}})
DRAIN = Override("drain", "pool", "a")


class _Failing(Publisher):
    """A publisher that raises `error` if it publishes a fleet once more."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Metrics())
        self.error = error

    async def publish(self, inputs: FleetInputs, *, allow_shrink: bool = False) -> PublishResult | None:
        if inputs.overrides:
            raise self.error
        return await super().publish(inputs, allow_shrink=allow_shrink)


class _Slow(MemoryStore):
    """A store that blocks writes while `works` is not set, like a stalled disk."""

    def __init__(self) -> None:
        super().__init__()
        self.works = asyncio.Event()
        self.works.set()

    async def put(self, key: str, value: str, expected_version: str, epoch: int) -> StoreEntry:
        await self.works.wait()
        return await super().put(key, value, expected_version, epoch)


def _change(publisher: Publisher, directory: Path) -> None:
    fleet = load_fleet(directory, FLEET)

    async def run() -> None:
        publishing = Publishing(publisher=publisher)
        await publishing.publish(fleet)
        live = publishing.live
        await live.apply(replace(live.inputs, overrides=(DRAIN,)), "an override")
        await publishing.end()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnsoundError([Diagnostic("LB901", "no")]), "a proxy would reject the change"),
        (ValueError("a bug"), "internal error"),
    ],
)
def test_failed_change_is_logged_with_the_published_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, message: str
) -> None:
    _change(_Failing(error), tmp_path)
    assert caplog.records[-1].getMessage() == f"{message}; the published fleet does not change"


def test_stalled_disk_delays_the_save_but_not_the_change(tmp_path: Path) -> None:
    path = write_fleet(tmp_path, FLEET)

    async def run() -> None:
        store = _Slow()
        state = SavedState(store, lambda _: None)
        await state.lead(lambda _: None)
        publishing = Publishing((str(path),), state=state)
        await publishing.reconciler().start(None, open_nothing)
        live = publishing.live
        store.works.clear()
        drained = asyncio.create_task(live.apply(replace(live.inputs, overrides=(DRAIN,)), "an override"))
        async with asyncio.timeout(20):
            while not publishing.served.composed.drains:
                await asyncio.sleep(0)
            await live.apply(replace(live.inputs, overrides=()), "signals", save=False)
        assert publishing.served.composed.drains == {}
        assert not drained.done()
        assert await state.drains() == {}
        store.works.set()
        await drained
        assert [*await state.drains()] == [("pool", "a")]
        live.save_soon()
        await live.end()
        assert await state.drains() == {}
        await publishing.end()

    asyncio.run(run())


def test_comments_silence_warnings_of_proxies_but_no_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_fleet(tmp_path, FLEET)
    found = (Diagnostic("LB901", "an error"), Diagnostic("LB902", "a warning", severity="warning"))
    monkeypatch.setattr("lbctl.serve.fleet.publisher.unsupported_features", lambda *_: found)
    monkeypatch.setattr("lbctl.serve.fleet.reconciler.silenced_by_comments", lambda _: lambda _item: True)

    async def run() -> None:
        publishing = Publishing((str(path),))
        reconciler = publishing.reconciler()
        await reconciler.start(None, open_nothing)
        assert reconciler.last_reload is not None
        assert [item.message for item in reconciler.last_reload.diagnostics if item in found] == ["an error"]
        await publishing.end()

    asyncio.run(run())

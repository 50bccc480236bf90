"""A drain ends with its replica, but survives a short loss of the replica in discovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbctl.control import overrides
from lbctl.control.overrides import GRACE, Override
from lbctl.runtime import log
from lbctl.runtime.errors import BadRequestError
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator import overrides as service
from lbctl.serve.settings import Options
from lbctl.serve.wiring import Services
from lbctl.store.interface import StoreError
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from lbctl.targets.load import Loaded
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.fleets import fleet_of, load_fleet, replica
from tests.support.publishing import publish_files


def load_replicas(directory: Path, *replicas: str) -> Loaded:
    """Load a fleet with these replicas."""
    return load_fleet(
        directory, fleet_of([replica(name, f"127.0.0.1:{port}") for port, name in enumerate(replicas, 9)])
    )


class Clock:
    """Seconds since the epoch, set by the test."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.looks = 0

    def time(self) -> float:
        self.looks += 1
        return self.now

    async def pass_by(self, seconds: float) -> None:
        """Advance the clock, and wait until the overrides have been checked since."""
        self.now += seconds
        enough = self.looks + 12  # a check of one override looks up to four times
        while self.looks < enough:
            await asyncio.sleep(0.005)


async def drained_after(
    seconds: float, services: Services, replicas: tuple[str, ...], directory: Path, clock: Clock
) -> list[str]:
    """Publish these replicas, advance the clock, and return the replicas with a drain override."""
    await publish_files(services.live, load_replicas(directory, *replicas), allow_shrink=True)
    for passed in (0.0, seconds):
        await clock.pass_by(passed)
    return [item.replica for item in services.live.inputs.overrides if item.kind == "drain"]


@asynccontextmanager
async def serving(directory: Path, clock: Clock) -> AsyncIterator[tuple[Services, SavedState]]:
    """Run a control plane with two replicas and the expiry of overrides; yield its services and its state."""
    options, nodes, metrics = Options((str(directory / "fleet.yaml"),)), NodeStatus(), Metrics()
    state = SavedState(SqliteStore.open(directory / "state"), log.warn)
    await state.lead(log.warn)
    services, _ = await wiring.build_from(options, Endpoints(options, nodes, metrics), metrics, nodes, state)
    services.overrides._now = clock.time
    await publish_files(services.live, load_replicas(directory, "a", "b"))
    work = asyncio.create_task(services.overrides.run())
    yield services, state
    work.cancel()
    await services.discovery.stop()
    await state.close()


@pytest.mark.slow
def test_drain_ends_after_its_replica_is_gone_for_the_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_EXPIRY_INTERVAL", 0.01)
    clock = Clock()

    async def test() -> None:
        async with serving(tmp_path, clock) as (services, state):
            await services.overrides.put(Override("drain", "pool", "a", reason="a fan"), None, None, "anna")
            assert await drained_after(GRACE - 1, services, ("b",), tmp_path, clock) == ["a"]
            assert await drained_after(GRACE, services, ("a", "b"), tmp_path, clock) == ["a"], "it was back in time"
            assert await drained_after(GRACE - 1, services, ("b",), tmp_path, clock) == ["a"], "the grace begins anew"
            assert await drained_after(1, services, ("b",), tmp_path, clock) == []
            assert await drained_after(1, services, ("a", "b"), tmp_path, clock) == []
            assert await state.overrides() == ()
            newest = (await state.audit())[-1]
            assert (newest.actor, newest.action, newest.subject) == ("lbctl", "end drain", "pool/a")
            assert newest.reason == "its replica was removed"

    asyncio.run(asyncio.wait_for(test(), 120))


@pytest.mark.parametrize("refused", ["append_audit", "save_overrides"])
def test_unsaved_end_of_an_override_is_recorded_once_later(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_EXPIRY_INTERVAL", 0.01)
    caplog.set_level("INFO", "lbctl")
    clock = Clock()

    async def refuse(*_: object) -> None:
        raise StoreError("no room")

    async def test() -> None:
        async with serving(tmp_path, clock) as (services, state):
            await services.overrides.put(Override("drain", "pool", "a"), None, 5.0, "anna")
            with monkeypatch.context() as full:
                full.setattr(state, refused, refuse)
                assert await drained_after(5, services, ("a", "b"), tmp_path, clock) == []
                assert len(await state.overrides()) == 1
            while await state.overrides():
                await asyncio.sleep(0.01)
            actions = [item.action for item in await state.audit()]
            assert actions.count("end drain") == 1
            about = "the audit log" if refused == "append_audit" else "overrides"
            lines = [line for line in caplog.messages if line.startswith(about)]
            assert len(lines) == 2, "its beginning, and its end"
            assert "no room" in lines[0]
            assert "again" in lines[1]

    asyncio.run(asyncio.wait_for(test(), 120))


def test_number_of_overrides_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "MAX_OVERRIDES", 1)

    async def test() -> None:
        async with serving(tmp_path, Clock()) as (services, state):
            await services.overrides.put(Override("drain", "pool", "a"), None, None, "anna")
            await services.overrides.put(Override("drain", "pool", "a", reason="again"), None, None, "anna")
            with pytest.raises(BadRequestError, match="the limit of 1 overrides has been reached: remove"):
                await services.overrides.put(Override("drain", "pool", "b"), None, None, "anna")
            assert [(item.replica, item.reason) for item in await state.overrides()] == [("a", "again")]

    asyncio.run(asyncio.wait_for(test(), 120))

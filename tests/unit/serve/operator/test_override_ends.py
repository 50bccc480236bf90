"""A drain does not outlive its replica, and survives a replica that discovery loses for a moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.control import overrides
from lbctl.control.overrides import GRACE, Override
from lbctl.serve import log, wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.errors import BadRequestError
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator import overrides as service
from lbctl.serve.settings import Options
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.saved import SavedState
from lbctl.serve.state.sqlite import SqliteStore
from lbctl.serve.wiring import Services
from lbctl.targets.load import Loaded, load
from lbctl.xds.protocol.node_status import NodeStatus


def fleet(directory: Path, *replicas: str) -> Loaded:
    rows = [{"name": name, "address": f"127.0.0.1:{port}"} for port, name in enumerate(replicas, 9)]
    routes = {"chat": {"match": {"path_prefix": "/"}, "pool": "chat"}}
    listeners = {"gateway": {"bind": "127.0.0.1:8080"}}
    text = {"version": 1, "listeners": listeners, "routes": routes, "pools": {"chat": {"replicas": rows}}}
    (directory / "fleet.yaml").write_text(json.dumps(text))
    loaded = load([str(directory / "fleet.yaml")], Diagnostics())
    assert loaded is not None
    return loaded


async def ignore(_loaded: Loaded, _can_be_served: bool) -> None:
    """Open no endpoints for the first fleet."""


class Clock:
    """Seconds since the epoch, set by the test."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.looks = 0

    def time(self) -> float:
        self.looks += 1
        return self.now

    async def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass, and wait until the overrides have been checked since."""
        self.now += seconds
        enough = self.looks + 12  # a check of one override looks up to four times
        while self.looks < enough:
            await asyncio.sleep(0.005)


async def ends(services: Services, replicas: tuple[str, ...], directory: Path, clock: Clock, after: float) -> list[str]:
    """Serve these replicas, let so many seconds pass, and return the replicas that operators drain then."""
    await services.publisher.serve(fleet(directory, *replicas), "files", allow_shrink=True)
    for seconds in (0.0, after):
        await clock.pass_by(seconds)
    return [item.replica for item in services.publisher.overrides if item.kind == "drain"]


@asynccontextmanager
async def serving(directory: Path, clock: Clock) -> AsyncIterator[tuple[Services, SavedState]]:
    """The control plane with two replicas, its expiry of overrides, and its state."""
    options, nodes, metrics = Options((str(directory / "fleet.yaml"),)), NodeStatus(), Metrics()
    state = SavedState(SqliteStore.open(directory / "state"), log.warn)
    await state.lead(log.warn)
    services, _ = await wiring.build_from(options, Endpoints(options, nodes, metrics), metrics, nodes, state, ignore)
    services.overrides._now = clock.time
    await services.publisher.serve(fleet(directory, "a", "b"), "files")
    work = asyncio.create_task(services.overrides.run())
    yield services, state
    work.cancel()
    await services.publisher.discovery.stop()
    await state.close()


def test_a_drain_ends_when_its_replica_has_been_gone_for_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_EXPIRY_INTERVAL", 0.01)
    clock = Clock()

    async def test() -> None:
        async with serving(tmp_path, clock) as (services, state):
            await services.overrides.put(Override("drain", "chat", "a", reason="a fan"), None, None, "anna")
            assert await ends(services, ("b",), tmp_path, clock, GRACE - 1) == ["a"]
            assert await ends(services, ("a", "b"), tmp_path, clock, GRACE) == ["a"], "it was back in time"
            assert await ends(services, ("b",), tmp_path, clock, GRACE - 1) == ["a"], "the grace begins anew"
            assert await ends(services, ("b",), tmp_path, clock, 1) == []
            assert await ends(services, ("a", "b"), tmp_path, clock, 1) == []
            assert await state.overrides() == ()
            newest = (await state.audit())[-1]
            assert (newest.actor, newest.action, newest.subject) == ("lbctl", "end drain", "chat/a")
            assert newest.reason == "its replica is gone"

    asyncio.run(asyncio.wait_for(test(), 120))


@pytest.mark.parametrize("refused", ["append_audit", "save_overrides"])
def test_an_end_that_cannot_be_saved_holds_and_is_recorded_once_when_it_can(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_EXPIRY_INTERVAL", 0.01)
    caplog.set_level("INFO", "lbctl")
    clock = Clock()

    async def refuse(*_: object) -> None:
        raise StoreError("no room")

    async def test() -> None:
        async with serving(tmp_path, clock) as (services, state):
            await services.overrides.put(Override("drain", "chat", "a"), None, 5.0, "anna")
            with monkeypatch.context() as full:
                full.setattr(state, refused, refuse)
                assert await ends(services, ("a", "b"), tmp_path, clock, 5) == []
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


def test_no_more_overrides_are_taken_than_a_restart_would_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "MAX_OVERRIDES", 1)

    async def test() -> None:
        async with serving(tmp_path, Clock()) as (services, state):
            await services.overrides.put(Override("drain", "chat", "a"), None, None, "anna")
            await services.overrides.put(Override("drain", "chat", "a", reason="again"), None, None, "anna")
            with pytest.raises(BadRequestError, match="there may be 1 overrides: end some"):
                await services.overrides.put(Override("drain", "chat", "b"), None, None, "anna")
            assert [(item.replica, item.reason) for item in await state.overrides()] == [("a", "again")]

    asyncio.run(asyncio.wait_for(test(), 120))

"""A process at the picker's address that `serve` cannot identify: it closes its ports, or does not listen yet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import cast

import pytest

from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.address import Address
from lbctl.ir.snapshot import Snapshot
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker.manager import PickerManager
from lbctl.serve.picker.peers import local_peer
from lbctl.serve.picker.tables import FleetMeasurements
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica
from tests.support.processes.ports import HOST, free_pair, release


def _picked_fleet() -> PublishedFleet:
    text = fleet_text(pools={"chat": pool(replica("a", "10.0.0.1:80"), balance={"algorithm": "pick"})})
    composed = compose(Snapshot(compiled(text).topology), LoopOutput(), (), {}, 1_000.0)
    return cast(PublishedFleet, SimpleNamespace(composed=composed))


@asynccontextmanager
async def _waiting(bind: Address) -> AsyncIterator[PickerManager]:
    """Run a manager whose picker is to use this address."""
    manager = PickerManager(
        lambda: FleetMeasurements(0.0), lambda: None, lambda _: None, dict, lambda _: None,
        own_key=str, memory=lambda: None, bind=bind, dry_run=False, insecure=False,
    )  # fmt: skip
    manager.use_fleet(_picked_fleet())
    task = asyncio.ensure_future(manager.tasks()["picker"]())
    try:
        yield manager
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def _bound() -> tuple[Address, socket.socket]:
    """Return the address of a picker, and a socket that is bound to it but does not listen."""
    bind = Address(HOST, free_pair())
    release()
    unknown = socket.socket()
    unknown.bind((bind.host, bind.port))
    return bind, unknown


@pytest.mark.slow
def test_process_that_releases_the_address_is_not_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve` leaves the address free for a moment, because the process may be an `lbctl picker` that restarts."""
    monkeypatch.setattr("lbctl.serve.picker.manager._LOOK", 0.05)
    monkeypatch.setattr("lbctl.serve.picker.manager._RESTART", 1.0)
    bind, unknown = _bound()

    async def run() -> None:
        with unknown:
            async with _waiting(bind) as manager:
                await asyncio.sleep(0.2)
                released = time.time()
                unknown.close()
                await _eventually(lambda: manager.running)
                assert manager.state.since is not None
                assert manager.state.since - released >= 1.0

    asyncio.run(run())
    assert "another process uses" not in caplog.text


@pytest.mark.slow
def test_address_is_left_free_for_a_subscribed_lbctl_picker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has just received the picker key, and restarts with the key's seed."""
    monkeypatch.setattr("lbctl.serve.picker.manager._LOOK", 0.01)
    monkeypatch.setattr("lbctl.serve.picker.manager._RETURN", 3.0)
    bind = Address(HOST, free_pair())
    release()

    async def run() -> None:
        async with _waiting(bind) as manager:
            subscribed = time.time()
            manager.feed.note_alone(local_peer("a", bind))
            await _eventually(lambda: manager.running)
            assert manager.state.since is not None
            assert manager.state.since - subscribed >= 3.0

    asyncio.run(run())


@pytest.mark.slow
def test_process_that_keeps_returning_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, another user's process could hide behind the looks, and receive prompts."""
    monkeypatch.setattr("lbctl.serve.picker.manager._LOOK", 0.01)
    monkeypatch.setattr("lbctl.serve.picker.manager._RESTART", 0.5)
    bind, unknown = _bound()
    unknown.close()

    async def run() -> None:
        async with _waiting(bind) as manager:
            reported = asyncio.ensure_future(_eventually(lambda: bool(manager.taken) or manager.running))
            while not reported.done():
                with socket.socket() as returning, suppress(OSError):
                    returning.bind((bind.host, bind.port))
                    await asyncio.sleep(0.15)
                await asyncio.sleep(0.15)
            await reported

    asyncio.run(run())


@pytest.mark.slow
def test_process_that_stays_unknown_is_reported() -> None:
    bind, unknown = _bound()

    async def run() -> None:
        with unknown:
            async with _waiting(bind) as manager:
                await _eventually(lambda: bool(manager.taken))
                assert manager.taken == f"another process uses {bind}"
                assert manager.reason.startswith(f"another process uses {bind}; set another port")

    asyncio.run(run())

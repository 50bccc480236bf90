"""A picker on another machine logs why it gets no new tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from lbctl.ir.pools import PickPolicy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import remote_link, wire
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.remote_link import ControlPlane, RemoteLink
from lbctl.picker.service import PickService


def test_control_plane_of_another_version_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lines(_link: RemoteLink, _service: PickService) -> AsyncIterator[bytes]:
        yield wire.line("begin", format=wire.FORMAT - 1)

    async def run() -> None:
        monkeypatch.setattr(RemoteLink, "_joined_lines", lines)
        link = RemoteLink(ControlPlane("http://control:8080", lambda: ""), "p1", "127.0.0.1:1")
        task = asyncio.create_task(link.run(TableFollower(lambda _name, _table: None), PickService()))
        async with asyncio.timeout(60):
            while not caplog.records:
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())
    assert "no new tables" in caplog.text
    assert (
        "a different version of lbctl: upgrade the older installation"
        in getattr(caplog.records[0], "fields", {})["why"]
    )


def test_engine_reports_expire_while_the_control_plane_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that had a queue does not count as busy for the whole outage."""
    table = PoolTable("chat", PickPolicy(()), (Candidate("a", "10.0.0.1:80", queue=7.0, kv=0.99),))
    seen: list[PoolTable | None] = []

    async def lines(_link: RemoteLink, _service: PickService) -> AsyncIterator[bytes]:
        if seen:
            raise aiohttp.ClientConnectionError("away")
        yield wire.line("begin", format=wire.FORMAT)
        yield wire.whole(table, 0.0)

    async def run() -> None:
        monkeypatch.setattr(RemoteLink, "_joined_lines", lines)
        monkeypatch.setattr(remote_link, "_REPORT_TTL", 0.0)
        link = RemoteLink(ControlPlane("http://control:8080", lambda: ""), "p1", "127.0.0.1:1")
        task = asyncio.create_task(link.run(TableFollower(lambda _, new: seen.append(new)), PickService()))
        async with asyncio.timeout(60):
            while len(seen) < 2:
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())
    assert seen == [table, replace(table, candidates=(Candidate("a", "10.0.0.1:80"),))]


class Answer:
    """A response of the control plane with one line, which ends the stream."""

    status = 200

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @property
    async def content(self) -> AsyncIterator[bytes]:
        yield b"data: " + wire.line("begin", format=wire.FORMAT)


def test_start_of_the_tables_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        monkeypatch.setattr(aiohttp.ClientSession, "get", lambda *_, **__: Answer())
        link = RemoteLink(ControlPlane("http://control:8080", lambda: ""), "p1", "127.0.0.1:1")
        assert await link.key() == ""
        task = asyncio.create_task(link.run(TableFollower(lambda _name, _table: None), PickService()))
        async with asyncio.timeout(60):
            while "no new tables" not in caplog.text:
                await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level("INFO"):
        asyncio.run(run())
    assert caplog.text.count("receiving tables from the control plane") == 1

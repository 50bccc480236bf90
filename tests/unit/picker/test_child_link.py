"""The picker's end of the link to `lbctl serve` fails if it can no longer report."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from lbctl.ir.pools import PickPolicy
from lbctl.pick.table import PoolTable
from lbctl.picker import child_link, wire
from lbctl.picker.child_link import SocketLink
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.reports import report_of
from lbctl.picker.service import PickService


def _run(spoil: Callable[[PickService, socket.socket], None]) -> None:
    """Run the link until it ends, after `spoil` was called."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(wire.line("settings", id="x"))
            service, link = PickService(), SocketLink(theirs)
            await link.settings()
            spoil(service, ours)
            async with asyncio.timeout(60):
                await link.run(TableFollower(lambda _name, _table: None), service)

    asyncio.run(run())


def test_error_in_a_report_ends_the_process() -> None:
    def spoil(service: PickService, _link: socket.socket) -> None:
        service.statistics.lost["chat"] = object()  # type: ignore[assignment]

    with pytest.raises(TypeError):
        _run(spoil)


def test_stopped_engine_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_link, "REPORT_INTERVAL", 3600.0)

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(wire.line("settings", id="x"))
            service, link = PickService(), SocketLink(theirs)
            await link.settings()
            stalled: dict[str, frozenset[str]] = {}
            monkeypatch.setattr(PickService, "stalled", stalled)
            follower = TableFollower(lambda _name, _table: stalled.update(chat=frozenset({"a"})))
            work = asyncio.create_task(link.run(follower, service))
            reader, writer = await asyncio.open_connection(sock=ours.dup())
            async with asyncio.timeout(60):
                assert report_of(wire.parse(await reader.readline())).stalled == {}
                writer.write(wire.whole(PoolTable("chat", PickPolicy(()), ()), 0.0))
                assert report_of(wire.parse(await reader.readline())).stalled == {"chat": ("a",)}
                writer.write_eof()
                await work
            writer.close()

    asyncio.run(run())


def test_error_in_a_line_ends_the_process() -> None:
    with pytest.raises(wire.WireError):
        _run(lambda _service, link: link.sendall(b"nonsense\n"))


def test_end_of_the_control_plane_is_not_an_error() -> None:
    _run(lambda _service, link: link.close())


def test_invalid_question_does_not_end_the_process() -> None:
    def spoil(_service: PickService, link: socket.socket) -> None:
        link.sendall(wire.line("explain", number=1, pool="\ud800"))
        link.shutdown(socket.SHUT_WR)

    _run(spoil)

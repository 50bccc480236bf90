"""The picker's end of the link to `lbctl serve` fails if it can no longer report."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from lbctl.picker import wire
from lbctl.picker.child_link import SocketLink
from lbctl.picker.received_tables import TableFollower
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

"""The link of a picker that is a child of `lbctl serve`: receives tables as lines and sends one report per second."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lbctl.pick.explain import document
from lbctl.picker import reports, wire
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.reports import PickerReport
from lbctl.picker.service import PickService
from lbctl.runtime import log
from lbctl.runtime.guard import until_one_ends

_EXPLAIN = b'{"kind":"explain",'
REPORT_INTERVAL = 1.0
"""Seconds between reports."""


class SocketLink:
    """The picker's end of the link."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def settings(self) -> Mapping[str, Any]:
        """Read the first line and return its values. Raises WireError."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._connection, limit=wire.MAX_LINE_BYTES)
        return wire.parse(await self._reader.readline())

    async def run(self, follower: TableFollower, service: PickService) -> None:
        """Apply lines and send reports until the control plane closes the link or exits. Raises WireError."""
        loop = asyncio.get_running_loop()
        works = {"tables": self._apply(follower, service), "reports": self._report(service)}
        try:
            with suppress(ConnectionError):
                await until_one_ends([loop.create_task(work, name=name) for name, work in works.items()])
        finally:
            await self._close()

    async def fail(self, why: str) -> None:
        """Report why this process is exiting. Call `settings` before calling this method."""
        assert self._writer is not None, "the settings were read"
        self._writer.write(wire.line("failed", why=why))
        await self._close()

    async def _close(self) -> None:
        assert self._writer is not None, "the settings were read"
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _apply(self, follower: TableFollower, service: PickService) -> None:
        assert self._reader is not None, "the settings were read"
        assert self._writer is not None, "the settings were read"
        while text := await self._reader.readline():
            if text.startswith(_EXPLAIN):
                self._writer.write(_explained(service, wire.parse(text)))
            else:
                follower.apply(text)

    async def _report(self, service: PickService) -> None:
        assert self._writer is not None, "the settings were read"
        reported = 0
        while True:
            self._writer.write(report(service, reported))
            reported = service.statistics.sampled
            await self._writer.drain()
            await asyncio.sleep(REPORT_INTERVAL)


def _explained(service: PickService, values: Mapping[str, Any]) -> bytes:
    """Return the response to an `explain` line; it has no explanation if the line is invalid."""
    try:
        return explanation_line(service, values)
    except wire.WireError:
        return wire.line("explained", number=values.get("number", 0), explanation=None)


def explanation_line(service: PickService, values: Mapping[str, Any]) -> bytes:
    """Return the response to a line of kind `explain`; it has no explanation if the decision fails.

    Raises WireError if the line cannot be read.
    """
    question = wire.question_of(values)
    try:
        explanation = service.explain(question)
        shown = None if explanation is None else document(explanation)
    except Exception:  # noqa: BLE001 -- a request of an operator must not end the picker
        log.failure("a pick could not be explained")
        shown = None
    return wire.line("explained", number=values.get("number", 0), explanation=shown)


def report(service: PickService, reported: int = 0) -> bytes:
    """Return a report line with the counts since the start and all samples after the first `reported` ones."""
    statistics = service.statistics
    return reports.line(
        PickerReport(
            reasons=tuple((pool, reason, count) for (pool, reason), count in statistics.reasons.items()),
            times=statistics.times,
            finished=statistics.finished,
            lost=statistics.lost,
            open=service.open_picks,
            open_by_pool=service.open_by_pool,
            expected_cached=service.expected_cached(),
            sampled=statistics.sampled,
            samples=tuple(statistics.samples_after(reported)),
            unsaved=service.unsaved,
            lengths=service.lengths,
            queues=statistics.queues,
            waiting_tenants={pool: service.queues.tenants(pool) for pool in service.queues.pools},
            stalled=service.stalled,
        )
    )

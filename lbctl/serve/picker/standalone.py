"""An `lbctl picker` at the address of `serve`'s own picker, started by an operator for this fleet's proxies.

`serve` then does not start a picker. Instead, it reads that picker's counts over HTTP and uses it to explain picks. The
process may belong to any user, so reports are limited in size, depth and time, and the types of their values are
checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from lbctl.base.bounded import whole
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, Shape, parse_object, shaped
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http
from lbctl.picker import wire
from lbctl.picker.admission import HEADER
from lbctl.picker.messages import PickerQuestion
from lbctl.picker.reports import PickerReport, report_of
from lbctl.picker.statistics import BOUNDS, WAIT_BOUNDS
from lbctl.runtime.net import http_client

TIMEOUT = 2.0
"""Timeout for a complete response, in seconds."""
MAX_ANSWER_BYTES = 8 << 20
"""Maximum size of a response in bytes."""
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, wire.WireError, ValueError)
_COUNTS = {...: int}
_SAMPLE: dict[str, Shape] = {
    "at": float,
    "pool": str,
    "replica": str,
    "reason": str,
    "seconds": float,
    "session": bool,
    "blocks": int,
    "tokens": float,
    "proxy": str,
}
_QUEUE: dict[str, Shape] = {
    "waiting": _COUNTS,
    "refused_full": int,
    "refused_late": int,
    "left": int,
    "waits": list,
    "tenants": {...: list},
}
_REPORT: dict[str, Shape] = {
    "kind": str,
    "reasons": [list],
    "times": {...: list},
    "finished": _COUNTS,
    "lost": _COUNTS,
    "open": int,
    "open_by_pool": _COUNTS,
    "expected_cached": {...: _COUNTS},
    "sampled": int,
    "samples": [_SAMPLE],
    "unsaved": str,
    "queues": {...: _QUEUE},
    "waiting_tenants": {...: _COUNTS},
    "stalled": {...: [str]},
}
_NEEDED = frozenset(_REPORT) - {"expected_cached", "unsaved", "queues", "waiting_tenants", "stalled"}
"""Keys contained in the reports of every supported version."""


class PickerAlone:
    """State of the process."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """Process ID; None if the process is not running."""
        self.heard: float | None = None
        """Time at which the picker last reported, in seconds on the monotonic clock; None before the first report."""
        self.report = PickerReport()
        """The newest report, with the requests that have ended since the first report and the samples taken since the
        last one."""
        self.problem = ""
        """Reason why the picker is not known to be running; empty if it has reported, or if there is no process."""
        self._http: Address | None = None
        self._headers: Mapping[str, str] = {}
        self._before: Mapping[str, int] = {}
        """Maps each pool to the number of requests that had ended before the first report."""
        self._sampled = 0
        """Decision samples up to the newest report."""

    @property
    def since(self) -> float | None:
        """Time at which the process was started, in seconds since the epoch; None if the process is not running."""
        try:
            return Path(f"/proc/{self.pid}").stat().st_ctime if self.pid is not None else None
        except OSError:
            return None

    def forget(self) -> None:
        """Record that the process has exited."""
        self.pid, self.heard, self.report, self._http, self._before = None, None, PickerReport(), None, {}
        self._sampled, self.problem = 0, ""

    async def look(self, bind: Address, pid: int, key: str) -> bool:
        """Read the process's report, and return whether there is a new one. `key`: the key for pick requests."""
        self._headers = {HEADER: key} if key else {}
        if pid != self.pid:
            self.forget()
            self.pid, self._http = pid, picker_http(bind)
            self.problem = f"`lbctl picker` (process {pid}) has not reported yet"
        try:
            report = _report(await self._answer(wire.REPORT_PATH))
        except TimeoutError:
            self.problem = f"the picker hangs: `lbctl picker` (process {pid}) does not answer within {TIMEOUT:g} s"
            return False
        except _FAILURES as error:
            self.problem = f"`lbctl picker` (process {pid}) does not report: {reason_of(error)}"
            return False
        self.problem = ""
        if self.heard is None:
            self._before = report.finished
        since = {pool: count - self._before.get(pool, 0) for pool, count in report.finished.items()}
        new = min(max(report.sampled - self._sampled, 0), len(report.samples))
        self._sampled = report.sampled
        self.report = replace(report, finished=since, samples=report.samples[len(report.samples) - new :])
        self.heard = time.monotonic()
        return True

    async def explain(self, question: PickerQuestion) -> Mapping[str, Any] | None:
        """Return the line that explains how it would handle a request; None if it does not respond."""
        try:
            explained = wire.parse(await self._answer(wire.EXPLAIN_PATH, wire.question(question)))
        except _FAILURES:
            return None
        return explained if explained["kind"] == "explained" else None

    async def _answer(self, path: str, body: bytes = b"") -> bytes:
        """Return a response's body. Raises one of `_FAILURES`."""
        async with (
            asyncio.timeout(TIMEOUT),
            http_client.session() as session,
            session.post(f"http://{self._http}{path}", data=body, headers=self._headers) as answer,
        ):
            if answer.status != 200:
                raise wire.WireError(f"status {answer.status}")
            return await whole(answer.content.iter_any(), MAX_ANSWER_BYTES)


def _report(text: bytes) -> PickerReport:
    """Parse a report. Raises ValueError and WireError for data that a picker would not write."""
    report: dict[str, Any] = shaped(parse_object(text), _REPORT)
    if not report.keys() >= _NEEDED:
        raise InvalidJsonError("a report is incomplete")
    for row in report["reasons"]:
        if list(map(type, row)) != [str, str, int]:
            raise InvalidJsonError("a reason must consist of a pool, a text and a count")
    for row in report["times"].values():
        _check_times(row, BOUNDS)
    for queue in report.get("queues", {}).values():
        _check_queue(queue)
    for sample in report["samples"]:
        sample.setdefault("replica", None)
        if sample.keys() != _SAMPLE.keys():
            raise InvalidJsonError("a sample is incomplete")
    return report_of(report)


def _check_times(row: list[Any], bounds: Sequence[float]) -> None:
    if len(row) != 2 or len(shaped(row[0], [int])) != len(bounds) + 1 or type(row[1]) not in (int, float):
        raise InvalidJsonError("times must consist of counts and a sum")


def _check_queue(queue: Mapping[str, Any]) -> None:
    if queue.keys() != _QUEUE.keys():
        raise InvalidJsonError("a queue is incomplete")
    _check_times(queue["waits"], WAIT_BOUNDS)
    for row in queue["tenants"].values():
        if len(row) != 2 or type(row[0]) is not int or type(row[1]) not in (int, float):
            raise InvalidJsonError("a tenant's waits must consist of a count and a sum")

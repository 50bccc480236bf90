"""An `lbctl picker` at the address of serve's own: somebody has started it, and the proxies of this fleet ask it.

`serve` starts no picker then. It reads the counts of that one by its HTTP, and explains picks by it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http
from lbctl.serve.picker import wire
from lbctl.serve.picker.question_key import HEADER

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, wire.WireError, ValueError)


class PickerAlone:
    """What is known of the process."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """Its process id; None where there is none."""
        self.heard: float | None = None
        """When it last reported, in seconds of the monotonic clock; None before the first report."""
        self.report: Mapping[str, Any] = {}
        """Its newest report, with the requests that ended since the first one and the samples since the last one."""
        self._http: Address | None = None
        self._headers: Mapping[str, str] = {}
        self._before: Mapping[str, int] = {}
        """Pool → the requests that had ended before the first report."""
        self._sampled = 0
        """The samples of decisions up to the newest report."""

    @property
    def since(self) -> float | None:
        """When the process was started, in seconds since the epoch; None where there is none."""
        try:
            return Path(f"/proc/{self.pid}").stat().st_ctime if self.pid is not None else None
        except OSError:
            return None

    def forget(self) -> None:
        """There is no such process any more."""
        self.pid, self.heard, self.report, self._http, self._before = None, None, {}, None, {}
        self._sampled = 0

    async def look(self, bind: Address, pid: int, key: str) -> bool:
        """Read the report of the process, and return whether there is a new one. `key` is that of questions."""
        self._headers = {HEADER: key} if key else {}
        if pid != self.pid:
            self.forget()
            self.pid, self._http = pid, picker_http(bind)
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.post(self._url(wire.REPORT_PATH), headers=self._headers) as answer,
            ):
                report = wire.parse(await answer.read()) if answer.status == 200 else None
        except _FAILURES:
            return False
        if report is None:
            return False
        finished = report.get("finished", {})
        if self.heard is None:
            self._before = finished
        since = {pool: count - self._before.get(pool, 0) for pool, count in finished.items()}
        samples, sampled = report.get("samples", []), report.get("sampled", 0)
        new = min(max(sampled - self._sampled, 0), len(samples))
        self._sampled = sampled
        self.report = {**report, "finished": since, "samples": samples[len(samples) - new :]}
        self.heard = time.monotonic()
        return True

    async def explain(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return how it would decide about a request; None where it does not answer."""
        line = wire.line("explain", **question)
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.post(self._url(wire.EXPLAIN_PATH), data=line, headers=self._headers) as answer,
            ):
                explained = wire.parse(await answer.read())
        except _FAILURES:
            return None
        return explained if explained["kind"] == "explained" else None

    def _url(self, path: str) -> str:
        return f"http://{self._http}{path}"

"""The reports of a follower's scraper, on which the leader decides: the newest report of each replica."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from itertools import islice

from lbctl.serve.telemetry.reports import ScrapeReport

_Key = tuple[str, str]
"""Pool and replica."""


class ReportOutbox:
    """The newest report of each replica."""

    def __init__(self) -> None:
        self._reports: dict[_Key, ScrapeReport] = {}
        self._restarted: dict[_Key, float] = {}
        """Replica → the last restart of its counters, if it has not been announced yet."""

    def put(self, report: ScrapeReport) -> None:
        """Add a report, replacing the previous one."""
        key = report.pool, report.replica
        self._reports[key] = report
        if report.restarted:
            self._restarted[key] = report.at

    def keep(self, replicas: Container[_Key]) -> None:
        """Drop the reports of all replicas except these."""
        self._reports = {key: report for key, report in self._reports.items() if key in replicas}
        self._restarted = {key: at for key, at in self._restarted.items() if key in replicas}

    def part(self, number: int, parts: int) -> dict[_Key, ScrapeReport]:
        """Return the part with this number, starting at 0, if the reports are divided into `parts`."""
        return {
            key: replace(report, restarted=key in self._restarted)
            for key, report in islice(self._reports.items(), number, None, parts)
        }

    def announced(self, reports: Mapping[_Key, ScrapeReport]) -> None:
        """Record that the leader has these reports: a restart of counters is announced only once."""
        for key, report in reports.items():
            if self._restarted.get(key, math.inf) <= report.at:
                del self._restarted[key]

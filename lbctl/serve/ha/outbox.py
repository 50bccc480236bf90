"""Reports from a follower's scraper on which the leader bases its decisions: the newest report for each replica."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from itertools import islice

from lbctl.serve.telemetry.reports import ScrapeReport

_Key = tuple[str, str]
"""Pool and replica."""


class ReportOutbox:
    """The newest report for each replica."""

    def __init__(self) -> None:
        self._reports: dict[_Key, ScrapeReport] = {}
        self._restarted: dict[_Key, float] = {}
        """Maps each replica to the time at which its counters last restarted, if this has not been announced yet."""

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
        """Divide the reports into `parts` parts, and return the part with this number, counting from 0."""
        return {
            key: replace(report, restarted=key in self._restarted)
            for key, report in islice(self._reports.items(), number, None, parts)
        }

    def announced(self, reports: Mapping[_Key, ScrapeReport]) -> None:
        """Record that the leader has received these reports. A counter restart is announced only once."""
        for key, report in reports.items():
            if self._restarted.get(key, math.inf) <= report.at:
                del self._restarted[key]

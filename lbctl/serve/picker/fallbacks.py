"""Counts the requests that proxies have sent without a pick: those that they report, less those that were picked.

The count goes on over restarts of the picker, whose own counts begin again. What an ended picker had open at its last
report is taken as picked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any


class Fallbacks:
    """`requests` returns pool → the requests that proxies have reported since the start."""

    def __init__(self, requests: Callable[[], Mapping[str, int]]) -> None:
        self._requests = requests
        self._base: dict[str, int] = {}
        """Picked pool → its requests without a pick before it was picked."""
        self._ended = Counter[str]()
        """Pool → the picks of the processes that have ended."""
        self._process = 0
        self._report: Mapping[str, Any] = {}

    def follow(self, pools: Collection[str]) -> None:
        """Count for these pools from now on: what a pool had before it was picked does not count."""
        requests = self._requests()
        self._base = {pool: self._base.get(pool, requests.get(pool, 0) - self._picked(pool)) for pool in pools}

    def reported(self, process: int, report: Mapping[str, Any]) -> None:
        """Note the report of the process with this number."""
        if process != self._process:
            self._ended.update(self._report.get("finished", {}))
            self._ended.update(self._report.get("open_by_pool", {}))
        self._process, self._report = process, report

    def counts(self) -> Mapping[str, int]:
        """Return pool → the requests that were sent without a pick since the pool is picked."""
        requests = self._requests()
        return {pool: max(0, requests.get(pool, 0) - self._picked(pool) - base) for pool, base in self._base.items()}

    def _picked(self, pool: str) -> int:
        return self._ended[pool] + int(self._report.get("finished", {}).get(pool, 0))

"""Checks the conditions of `lbctl status --check`: no critical problem, and every proxy has the published fleet.

Proxies may need time. For example, nginx waits for its next reload. With a time limit, the check is repeated until all
conditions are met. A disconnected Envoy causes the check to fail if it was the last Envoy for its entry. Otherwise, the
number of expected proxies is decisive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.api import schema
from lbctl.api.client import ServeClient, UnavailableError

_FINE = frozenset({"SYNCED", "GONE", "NOT DRIVEN"})
_LOOK_INTERVAL = 0.5
"""Seconds between polls of `--wait`."""


@dataclass(frozen=True, slots=True)
class StatusCheck:
    """A check of a running `serve`."""

    remote: ServeClient
    expected: int | None = None
    """Minimum number of proxies that must be connected and in sync, or None for any number."""

    def run(self, seconds: float) -> tuple[str, ...]:
        """Wait for up to `seconds`, and return a sentence for each remaining problem.

        Raises UnavailableError if the server has not responded by then.
        """
        deadline = time.monotonic() + seconds
        while True:
            is_last = time.monotonic() >= deadline
            try:
                problems = tuple(self._problems())
            except UnavailableError:
                if is_last:
                    raise
                problems = ("serve does not answer",)
            if not problems or is_last:
                return problems
            time.sleep(min(_LOOK_INTERVAL, max(0.0, deadline - time.monotonic())))

    def _problems(self) -> Iterator[str]:
        yield from summary_problems(self.remote.get("/api/v1/status", schema.Status))
        yield from proxy_problems(self.remote.get("/api/v1/proxies", schema.Proxies).proxies, self.expected)


def summary_problems(summary: schema.Status) -> Iterator[str]:
    """Yield a sentence for each critical problem, except those that `proxy_problems` reports."""
    for item in summary.problems:
        if item.severity == "critical" and item.kind != "proxy":
            yield item.text


def proxy_problems(proxies: Sequence[schema.Proxy], expected: int | None = None) -> Iterator[str]:
    """Yield a sentence for each proxy that is not in sync, and one if fewer proxies than expected are in sync."""
    real = [item for item in proxies if item.kind != "reader" and item.confirmed]
    for item in real:
        if item.state not in _FINE:
            yield f"{item.node} is {item.state}" + (f": {item.reason}" if item.reason else "")
    synced = sum(item.connected and item.state == "SYNCED" for item in real)
    if expected is not None and synced < expected:
        gone = [item.node for item in real if item.state == "GONE"]
        left = f"; disconnected: {', '.join(gone)}" if gone else ""
        yield f"{synced} of {expected} expected proxies are connected and in sync{left}"

"""Keeps the state of a replica's sources between scrapes, and converts each scrape to a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from lbctl.runtime.net.fetch import Fetched, Reason
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.signals import prometheus
from lbctl.signals.cached import CachedTokens, cached_tokens
from lbctl.signals.derive import DerivedSignals, TimedValue, derive
from lbctl.signals.exposition import MetricsPage
from lbctl.signals.merge import SourceSignals, merge
from lbctl.signals.plan import ScrapePlan, ScrapeSource
from lbctl.signals.source import MetricsTable, SourceReading

_WRONG_PAGE = frozenset({"status", "redirect", "html", "json"})
"""Reasons for a failed scrape that may indicate a wrong path."""
_MAX_REFUSED = 20
"""Maximum number of rejected metrics per page included in a report."""


class ReplicaSources:
    """One replica's sources. Each method handles one scrape of the source with the given index."""

    def __init__(self, plan: ScrapePlan) -> None:
        self.plan = plan
        self._signals = [SourceSignals() for _ in plan.sources]
        self._readings: list[SourceReading | None] = [None for _ in plan.sources]
        self.states = [SourceState(source.kind, source.display_url) for source in plan.sources]
        self.makes_no_progress = False
        """Whether the engine made no progress between its last two pages although it had requests."""

    def take_over(self, earlier: ReplicaSources) -> None:
        """Adopt the state of unchanged sources after the replica's sources have changed."""
        index_of = {_identity(source): index for index, source in enumerate(earlier.plan.sources)}
        for index, source in enumerate(self.plan.sources):
            earlier_index = index_of.get(_identity(source))
            if earlier_index is not None:
                self._signals[index] = earlier._signals[earlier_index]
                self._readings[index] = earlier._readings[earlier_index]
                self.states[index] = earlier.states[earlier_index]

    def page(self, index: int, fetched: Fetched, page: MetricsPage, started: float, ended: float) -> ScrapeReport:
        """Handle a metrics page.

        `started` and `ended`: start and end of the request, in seconds on the scraper's clock.
        """
        source, refused = self.plan.sources[index], _refused(page)
        table = source.table
        assert table is not None
        reading = table.reading(page, source.selection, started)
        if not reading.quantities:
            reason, message = _why_no_signal(table, page)
            return self.failed(index, replace(fetched, reason=reason, message=message), started, ended, refused)
        derived = derive(table, self._readings[index], reading)
        self.makes_no_progress = _makes_no_progress(self._signals[index].values, derived)
        self._readings[index] = replace(reading, moves=derived.moves)
        self._keep_signals(index, derived, reading)
        self._succeeded(index, fetched, started, ended, refused)
        return self._report(index, ended, derived)

    def answer(self, index: int, fetched: Fetched, started: float, ended: float) -> ScrapeReport:
        """Handle a query's result."""
        source = self.plan.sources[index]
        try:
            value = prometheus.value(fetched.body, source.signal, source.unit)
        except prometheus.NoValueError as error:
            return self.failed(index, replace(fetched, reason="query", message=str(error)), started, ended)
        derived = DerivedSignals({source.signal: TimedValue(value, started)}, by_steps=source.signal == "progress")
        self._keep_signals(index, derived, SourceReading(started, {}))
        self._succeeded(index, fetched, started, ended, ())
        return self._report(index, ended, derived)

    def failed(
        self, index: int, fetched: Fetched, started: float, ended: float, refused: tuple[tuple[str, str], ...] = ()
    ) -> ScrapeReport:
        """Handle a scrape that did not return a signal."""
        self.makes_no_progress = False
        self.states[index] = replace(
            self.states[index],
            scraped_at=ended,
            reason=fetched.reason,
            message=fetched.message + (_page_hint(self.plan.sources[index]) if fetched.reason in _WRONG_PAGE else ""),
            size=fetched.size,
            seconds=ended - started,
            refused=refused,
        )
        return self._report(index, ended, DerivedSignals({}))

    def _keep_signals(self, index: int, derived: DerivedSignals, reading: SourceReading) -> None:
        before = self._signals[index]
        self._signals[index] = SourceSignals(
            {**before.values, **derived.values},
            derived.evidence or before.evidence,
            reading.xids if "xid" in reading.quantities else before.xids,
            derived.by_steps if "progress" in derived.values else before.by_steps,
        )

    def _succeeded(
        self, index: int, fetched: Fetched, started: float, ended: float, refused: tuple[tuple[str, str], ...]
    ) -> None:
        state = self.states[index]
        self.states[index] = SourceState(
            state.kind, state.url, ended, started, size=fetched.size, seconds=ended - started, refused=refused
        )

    def _report(self, index: int, ended: float, derived: DerivedSignals) -> ScrapeReport:
        plan, signals = self.plan, merge(self._signals, ended, self.plan.stale_after)
        return ScrapeReport(
            plan.pool,
            plan.replica,
            ended,
            index,
            signals,
            tuple(self.states),
            plan.reserves_memory or "kv_cache" in signals.values,
            derived.evidence,
            derived.restarted,
            *self._first_tokens(),
            self._cached(ended),
        )

    def _first_tokens(self) -> tuple[float | None, float | None]:
        """Return the engine's counts of first tokens and prompt tokens.

        Both come from the first page that contains a count of first tokens.
        """
        pages = (reading.quantities for reading in self._readings if reading is not None)
        page: Mapping[str, float] = next((quantities for quantities in pages if "ttft_count" in quantities), {})
        return page.get("ttft_count"), page.get("prompt_tokens")

    def _cached(self, now: float) -> CachedTokens | None:
        """Return the engine's cached-token counts; None if no current page contains them."""
        for page, reading in enumerate(self._readings):
            if reading is not None and now - reading.at <= self.plan.stale_after:
                found = cached_tokens(reading, page)
                if found is not None:
                    return found
        return None


def _identity(source: ScrapeSource) -> tuple[object, ...]:
    names = source.table.names() if source.table else None
    return (source.kind, source.url, source.query, source.signal, source.unit, source.selection, names)


def _page_hint(source: ScrapeSource) -> str:
    table = source.table
    if table is None or not table.page or urlsplit(source.url).path.endswith(table.page):
        return ""
    return f"; the metrics page of {table.title} is {table.page}"


def _makes_no_progress(before: Mapping[str, TimedValue], derived: DerivedSignals) -> bool:
    values = derived.values
    if not derived.by_steps or "progress" not in values or "progress" not in before:
        return False
    has_requests = any(name in values and values[name].value for name in ("running", "queue"))
    return has_requests and values["progress"].value == before["progress"].value


def _refused(page: MetricsPage) -> tuple[tuple[str, str], ...]:
    if not page.refused:
        return ()
    return tuple((name, lines[0].reason) for name, lines in sorted(page.refused.items())[:_MAX_REFUSED])


def _why_no_signal(table: MetricsTable, page: MetricsPage) -> tuple[Reason, str]:
    if not table.series:
        return "nothing_known", "the source does not define metric, unit and signal"
    if not page.samples and page.refused:
        name, reason = _refused(page)[0]
        return "values", f"{name}: {reason}"
    if not page.samples:
        return "nothing_known", f"the page has no {table.title} metric"
    return "nothing_known", "the page has no plausible value for this replica"

"""What is kept of one replica between two looks at its sources, and how a page becomes a report."""

from __future__ import annotations

from dataclasses import replace

from lbctl.serve.telemetry.fetch import Fetched, Reason
from lbctl.serve.telemetry.reports import Report, SourceState
from lbctl.signals import prometheus
from lbctl.signals.derive import DerivedSignals, TimedValue, derive
from lbctl.signals.exposition import MetricsPage
from lbctl.signals.merge import SourceSignals, merge
from lbctl.signals.plan import ScrapePlan, ScrapeSource
from lbctl.signals.source import MetricsTable, SourceReading

_MOST_REFUSED = 20


class ReplicaSources:
    """Of one replica. Every method tells one look at one of its sources, by its place in the list."""

    def __init__(self, watched: ScrapePlan) -> None:
        self.watched = watched
        self._told = [SourceSignals() for _ in watched.sources]
        self._readings: list[SourceReading | None] = [None for _ in watched.sources]
        self.states = [SourceState(item.kind, item.display_url) for item in watched.sources]

    def follow(self, earlier: ReplicaSources) -> None:
        """Goes on from what was known of the same replica before its sources changed."""
        places = {_identity(item): place for place, item in enumerate(earlier.watched.sources)}
        for place, item in enumerate(self.watched.sources):
            known = places.get(_identity(item))
            if known is not None:
                self._told[place] = earlier._told[known]
                self._readings[place] = earlier._readings[known]
                self.states[place] = earlier.states[known]

    def page(self, place: int, fetched: Fetched, page: MetricsPage, started: float, now: float) -> Report:
        """A page that came, read for this source's table."""
        source, refused = self.watched.sources[place], _refused(page)
        table = source.table
        assert table is not None
        reading = table.reading(page, source.selection, started)
        if not reading.quantities:
            reason, words = _why_nothing(table, page)
            return self.failed(place, replace(fetched, reason=reason, words=words), started, now, refused)
        derived = derive(table, self._readings[place], reading)
        self._readings[place] = replace(reading, moves=derived.moves)
        self._keep(place, derived, reading)
        self._good(place, fetched, started, now, refused)
        return self._report(place, now, derived)

    def answer(self, place: int, fetched: Fetched, started: float, now: float) -> Report:
        """An answer to a query."""
        source = self.watched.sources[place]
        try:
            value = prometheus.value(fetched.body, source.signal, source.unit)
        except prometheus.NoValueError as error:
            return self.failed(place, replace(fetched, reason="query", words=str(error)), started, now)
        derived = DerivedSignals({source.signal: TimedValue(value, started)}, by_steps=source.signal == "progress")
        self._keep(place, derived, SourceReading(started, {}))
        self._good(place, fetched, started, now, ())
        return self._report(place, now, derived)

    def failed(
        self, place: int, fetched: Fetched, started: float, now: float, refused: tuple[tuple[str, str], ...] = ()
    ) -> Report:
        """A look that gave nothing."""
        self.states[place] = replace(
            self.states[place],
            looked_at=now,
            reason=fetched.reason,
            words=fetched.words,
            size=fetched.size,
            seconds=now - started,
            refused=refused,
        )
        return self._report(place, now, DerivedSignals({}))

    def _keep(self, place: int, derived: DerivedSignals, reading: SourceReading) -> None:
        before = self._told[place]
        self._told[place] = SourceSignals(
            {**before.values, **derived.values},
            derived.evidence or before.evidence,
            reading.xids if "xid" in reading.quantities else before.xids,
            derived.by_steps if "progress" in derived.values else before.by_steps,
        )

    def _good(
        self, place: int, fetched: Fetched, started: float, now: float, refused: tuple[tuple[str, str], ...]
    ) -> None:
        state = self.states[place]
        self.states[place] = SourceState(
            state.kind, state.url, now, started, size=fetched.size, seconds=now - started, refused=refused
        )

    def _report(self, place: int, now: float, derived: DerivedSignals) -> Report:
        item, signals = self.watched, merge(self._told, now, self.watched.stale_after)
        return Report(
            item.pool,
            item.replica,
            now,
            place,
            signals,
            tuple(self.states),
            item.reserves_memory or "kv_cache" in signals.values,
            derived.evidence,
            derived.restarted,
        )


def _identity(source: ScrapeSource) -> tuple[object, ...]:
    names = source.table.names() if source.table else None
    return (source.kind, source.url, source.query, source.signal, source.unit, source.selection, names)


def _refused(page: MetricsPage) -> tuple[tuple[str, str], ...]:
    if not page.refused:
        return ()
    return tuple((name, lines[0].reason) for name, lines in sorted(page.refused.items())[:_MOST_REFUSED])


def _why_nothing(table: MetricsTable, page: MetricsPage) -> tuple[Reason, str]:
    if not table.series:
        return "nothing_known", "the source does not say which metric, in which unit, is which signal"
    if not page.samples and page.refused:
        name, reason = _refused(page)[0]
        return "values", f"{name}: {reason}"
    if not page.samples:
        return "nothing_known", f"no metric of {table.title} stands on the page"
    return "nothing_known", "no line of the page is this replica's, or none has a value that can be"

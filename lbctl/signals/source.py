"""Kinds of metrics sources: tables of aliases, and the code that reads pages using these tables.

Each kind's table has its own module. A quantity has an ordered list of series, because metric names change between
versions. The first name found on the page is used. The lines of one series (engines, ranks, models, GPUs) are combined
by the quantity's rule. If one of them is rejected, a sum or mean would be wrong, so the quantity is unknown. A maximum
or minimum of the remaining lines is still used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lbctl.signals.devices import GpuLabels, LineFilter, Selection, normalized
from lbctl.signals.exposition import Labels, MetricsPage, MetricsReader, Sample
from lbctl.signals.signal import COUNTERS, FATAL_XIDS, RATES, Combine, combine_of, plausible

Evidence = Literal["tokens", "batches", ""]
Heartbeat = Literal["steps", "requests", ""]
_RATE_COUNTERS = frozenset(RATES.values())
_NEEDS_ALL: frozenset[Combine] = frozenset({"sum", "mean"})


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A metric that provides a quantity."""

    metric: str
    scale: float = 1.0
    """Factor that converts values to the unit in `signals.signal`."""
    combine: Combine | None = None
    """Rule that combines several lines; None: the quantity's rule."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Labels and the values that they may have; "" means absent or empty."""
    where_prefix: tuple[tuple[str, str], ...] = ()
    """Labels and the prefixes of their values."""
    also: tuple[str, ...] = ()
    """Other metrics whose lines are added."""
    repeats: tuple[str, ...] = ()
    """Labels that distinguish lines with the same value (ranks that run in step); only the largest value is used."""
    less: str = ""
    """A metric to subtract, line by line."""
    gone: bool = False
    """Whether a negative value means that the object of the line no longer exists, so that the line is ignored."""
    code: str = ""
    """Label that contains the code, if each line counts the events with one code."""
    whole: bool = False
    """Whether the metric describes an entire GPU, and therefore each of its slices."""
    versions: str = ""
    """Exporter versions that have the metric, as text."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that are added."""
        return (self.metric, *self.also)


@dataclass(frozen=True, slots=True)
class SourceReading:
    """The values of one reading of a source."""

    at: float
    """Seconds on a monotonic clock."""
    quantities: Mapping[str, float]
    """Maps each quantity to its value."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Maps each quantity to the number of lines that were combined."""
    xids: tuple[tuple[str, int], ...] = ()
    """(GPU, code) of each reported XID, without code 0."""
    moves: int = 0
    """`DerivedSignals.moves` as of this reading."""
    absent: frozenset[str] = frozenset()
    """Counters of `signal.RATES` without a line on the page. A counter with labels has none before its first event."""


@dataclass(frozen=True, slots=True)
class MetricsTable:
    """A kind of source."""

    kind: str
    """Name in the registry."""
    title: str
    """Display name."""
    series: Mapping[str, tuple[MetricSeries, ...]]
    """Maps each quantity to its aliases, newest first."""
    evidence: Evidence = ""
    """How the speed at the current batch size is determined; "" if unknown.

    `tokens`: inter-token time, and tokens per step; `batches`: time in the model, and inputs per execution.
    """
    no_evidence: str = ""
    """Reason why the source does not provide evidence."""
    voided_by: str = ""
    """A quantity whose presence shows that this evidence is meaningless for the engine."""
    heartbeat: Heartbeat = ""
    """Whether progress changes with every step of the engine, or only when a request is answered."""
    reserves_memory: bool = False
    """Whether the engine reserves the GPU's memory at startup, so that free memory is not a usable signal."""
    running_includes_queue: bool = False
    """Whether `running` also includes the waiting requests in `queue`."""
    gpus: GpuLabels | None = None
    """Labels that identify GPUs on its pages; None if the pages do not identify them."""
    page: str = ""
    """Path of the metrics page; empty: `/metrics`."""
    removed: Mapping[str, str] = field(default_factory=dict)
    """Maps names that newer versions have removed to their replacements."""
    notes: tuple[str, ...] = ()
    """Remarks for the documentation."""

    def names(self) -> frozenset[str]:
        """Return the names of all metrics that are used."""
        series_names = {name for series in self._all() for name in (*series.metrics, series.less) if name}
        return frozenset(series_names | ({self.gpus.index} if self.gpus and self.gpus.index else set()))

    def reader(self) -> MetricsReader:
        """Return a reader for pages of this kind; constructed once per source."""
        return MetricsReader(self.names())

    def reading(self, page: MetricsPage, selection: Selection, at: float) -> SourceReading:
        """Return the values of one replica on the page."""
        line_filter = None if selection.everything else LineFilter(selection, self.gpus, self._indices(page))
        quantities, lines = {}, {}
        xids: tuple[tuple[str, int], ...] = ()
        absent = set()
        for quantity, aliases in self.series.items():
            series, values = _first(page, quantity, aliases, line_filter)
            if series is not None:
                quantities[quantity] = combine(quantity, series, [value for _, value in values])
                lines[quantity] = len(values)
            elif quantity in _RATE_COUNTERS and not _has_lines(page, aliases, line_filter):
                absent.add(quantity)
            if quantity == "xid":
                xids = tuple(sorted((_gpu(labels, self.gpus), int(value)) for labels, value in values if value))
        return SourceReading(at, quantities, lines, xids, absent=frozenset(absent))

    def _all(self) -> Iterable[MetricSeries]:
        return (alias for aliases in self.series.values() for alias in aliases)

    def _indices(self, page: MetricsPage) -> Mapping[str, str]:
        if self.gpus is None or not self.gpus.index:
            return {}
        return {
            normalized(sample.labels[name]): f"{sample.value:.0f}"
            for sample in page.samples.get(self.gpus.index, ())
            for name in self.gpus.names
            if name in sample.labels
        }


@dataclass(frozen=True, slots=True)
class _Matches:
    """A replica's lines in one series."""

    values: list[tuple[Labels, float]]
    """(labels, value) of each line."""
    refused: bool
    """Whether at least one of the lines could not be read."""
    combine: Combine | None


def _first(
    page: MetricsPage, quantity: str, aliases: Sequence[MetricSeries], line_filter: LineFilter | None
) -> tuple[MetricSeries | None, list[tuple[Labels, float]]]:
    """Return the first alias with a value, and its values.

    An older name of a counter is ignored if the page contains the newer name, because the two have separate counts.
    """
    for alias in aliases:
        if _is_present(page, alias):
            values = _plausible(quantity, _matches(page, alias, line_filter))
            if values:
                return alias, values
            if quantity in COUNTERS:
                break
    return None, []


def _has_lines(page: MetricsPage, aliases: Sequence[MetricSeries], line_filter: LineFilter | None) -> bool:
    """Return whether the page has lines of these series, readable or not."""
    found = (_matches(page, alias, line_filter) for alias in aliases)
    return any(item.values or item.refused for item in found)


def _is_present(page: MetricsPage, series: MetricSeries) -> bool:
    return any(name in page.samples or name in page.refused for name in series.metrics)


def _matches(page: MetricsPage, series: MetricSeries, line_filter: LineFilter | None) -> _Matches:
    values, refused = [], False
    for name in series.metrics:
        for sample in page.samples.get(name, ()):
            if _concerns(sample.labels, series, line_filter):
                value = _value(sample, series, page)
                refused = refused or value is None
                if value is not None:
                    values.append((sample.labels, value))
        refused = refused or any(
            line.labels is None or _concerns(line.labels, series, line_filter)
            for line in page.refused.get(name, ())
            if not (series.gone and line.is_negative)
        )
    return _Matches(_without_repeats(values, series.repeats) if series.repeats else values, refused, series.combine)


def _concerns(labels: Labels, series: MetricSeries, line_filter: LineFilter | None) -> bool:
    if series.where and not all(labels.get(key, "") in values for key, values in series.where):
        return False
    if series.where_prefix and not all(labels.get(key, "").startswith(value) for key, value in series.where_prefix):
        return False
    return line_filter is None or line_filter(labels, series.whole)


def _value(sample: Sample, series: MetricSeries, page: MetricsPage) -> float | None:
    if series.code:
        code = sample.labels.get(series.code, "")
        return float(code) if sample.value and code.isascii() and code.isdigit() else (None if sample.value else 0.0)
    if series.combine == "any":
        return float(sample.value > 0)
    if not series.less:
        return sample.value * series.scale
    taken = next((other.value for other in page.samples.get(series.less, ()) if other.labels == sample.labels), None)
    return None if taken is None or taken > sample.value else (sample.value - taken) * series.scale


def _without_repeats(values: list[tuple[Labels, float]], repeats: tuple[str, ...]) -> list[tuple[Labels, float]]:
    """If several lines differ only in the labels `repeats`, keep only the line with the largest value."""
    largest: dict[tuple[tuple[str, str], ...], tuple[Labels, float]] = {}
    for labels, value in values:
        key = tuple(sorted(pair for pair in labels.items() if pair[0] not in repeats))
        if key not in largest or value > largest[key][1]:
            largest[key] = (labels, value)
    return list(largest.values())


def _plausible(quantity: str, matches: _Matches) -> list[tuple[Labels, float]]:
    """Return the plausible values; none if a value that the combination needs is missing."""
    checked = [(labels, plausible(quantity, value)) for labels, value in matches.values]
    valid = [(labels, value) for labels, value in checked if value is not None]
    partial = matches.refused or len(valid) < len(checked)
    return [] if partial and (matches.combine or combine_of(quantity)) in _NEEDS_ALL else valid


def combine(quantity: str, series: MetricSeries, values: Sequence[float]) -> float:
    """Combine one or more values into a single number."""
    match series.combine or combine_of(quantity):
        case "sum":
            return sum(values)
        case "mean":
            return sum(values) / len(values)
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "any":
            return float(any(values))
        case "fatal":
            return max(values, key=lambda value: (value in FATAL_XIDS, value))


def _gpu(labels: Labels, gpus: GpuLabels | None) -> str:
    return next((labels[name] for name in (gpus.names if gpus else ()) if labels.get(name)), "")

"""What a kind of metrics source is: a table of aliases. Reading them is here; the tables are a module each.

A quantity has several series in order: names change between versions, and the first that a page has is taken. Lines of
one series (engines, ranks, models, GPUs) become one number by the quantity's rule. Where one of those lines is refused,
a sum or a mean would be wrong, and the quantity is unknown; the largest or least of the others still says something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lbctl.signals.devices import GpuLabels, Mine, Selection, plain
from lbctl.signals.exposition import Labels, Page, Reader, Sample
from lbctl.signals.signal import COUNTERS, FATAL_XIDS, Combine, believed, combine_of

Evidence = Literal["tokens", "batches", ""]
Heartbeat = Literal["steps", "requests", ""]
_NEEDS_ALL: frozenset[Combine] = frozenset({"sum", "mean"})


@dataclass(frozen=True, slots=True)
class Series:
    """One metric as a quantity.

    `scale`: factor to the unit of `signals.signal`. `where`: labels and the values that they may have, "" for absent or
    empty. `also`: metrics that count with it. `repeats`: labels whose values say the same again (ranks that run in
    step): only the largest of them counts. `less`: a metric to take away, line by line. `code`: the label that holds
    the number of a line that counts something. `whole`: what is said of a GPU holds for its slices. `versions`: of the
    exporter, in words.
    """

    metric: str
    scale: float = 1.0
    combine: Combine | None = None
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    also: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    less: str = ""
    code: str = ""
    whole: bool = False
    versions: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric, *self.also)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a source said. `at`: seconds of a monotonic clock; `lines`: of how many lines each quantity
    is; `xids`: (GPU, code) as told, 0 left out; `moves`: of `Derived`, of this look."""

    at: float
    quantities: Mapping[str, float]
    lines: Mapping[str, int] = field(default_factory=dict)
    xids: tuple[tuple[str, int], ...] = ()
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of source.

    `series`: quantity → its aliases, the newest first. `evidence`: from what the speed at the present batch is known:
    `tokens` (time between tokens, and tokens of each step), `batches` (time in the model, and inputs of each
    execution), or not at all, then `without` says why; `voided_by`: a quantity that shows an engine of which this
    evidence says nothing. `heartbeat`: whether its progress moves with every step of the
    engine, or only when a request is answered. `reserves_memory`: it takes the GPU's memory at its start, so free
    memory means nothing. `removed`: names that newer versions no longer have → what to use instead.
    """

    kind: str
    title: str
    series: Mapping[str, tuple[Series, ...]]
    evidence: Evidence = ""
    without: str = ""
    voided_by: str = ""
    heartbeat: Heartbeat = ""
    reserves_memory: bool = False
    gpus: GpuLabels | None = None
    removed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def names(self) -> frozenset[str]:
        """Every metric that is read."""
        own = {name for item in self._all() for name in (*item.metrics, item.less) if name}
        return frozenset(own | ({self.gpus.index} if self.gpus and self.gpus.index else set()))

    def reader(self) -> Reader:
        """For pages of this kind; made once."""
        return Reader(self.names())

    def reading(self, page: Page, selection: Selection, at: float) -> Reading:
        """What the page says of one replica."""
        mine = None if selection.everything else Mine(selection, self.gpus, self._indices(page))
        quantities, lines = {}, {}
        xids: tuple[tuple[str, int], ...] = ()
        for quantity, aliases in self.series.items():
            item, values = _first(page, quantity, aliases, mine)
            if item is not None:
                quantities[quantity] = combined(quantity, item, [value for _, value in values])
                lines[quantity] = len(values)
            if quantity == "xid":
                xids = tuple(sorted((_gpu(labels, self.gpus), int(value)) for labels, value in values if value))
        return Reading(at, quantities, lines, xids)

    def _all(self) -> Iterable[Series]:
        return (item for aliases in self.series.values() for item in aliases)

    def _indices(self, page: Page) -> Mapping[str, str]:
        if self.gpus is None or not self.gpus.index:
            return {}
        return {
            plain(sample.labels[name]): f"{sample.value:.0f}"
            for sample in page.samples.get(self.gpus.index, ())
            for name in self.gpus.names
            if name in sample.labels
        }


@dataclass(frozen=True, slots=True)
class _Told:
    """`values`: (labels, value) of the lines that are the replica's; `refused`: some of them could not be read."""

    values: list[tuple[Labels, float]]
    refused: bool
    combine: Combine | None


def _first(
    page: Page, quantity: str, aliases: Sequence[Series], mine: Mine | None
) -> tuple[Series | None, list[tuple[Labels, float]]]:
    """The first alias that says something. A counter is never looked for under an older name while the newer one is on
    the page: two names are two counts."""
    for item in aliases:
        if _stands(page, item):
            values = _believed(quantity, _told(page, item, mine))
            if values:
                return item, values
            if quantity in COUNTERS:
                break
    return None, []


def _stands(page: Page, item: Series) -> bool:
    return any(name in page.samples or name in page.refused for name in item.metrics)


def _told(page: Page, item: Series, mine: Mine | None) -> _Told:
    values, refused = [], False
    for name in item.metrics:
        for sample in page.samples.get(name, ()):
            if _about(sample.labels, item, mine):
                value = _value(sample, item, page)
                refused = refused or value is None
                if value is not None:
                    values.append((sample.labels, value))
        refused = refused or any(
            line.labels is None or _about(line.labels, item, mine) for line in page.refused.get(name, ())
        )
    return _Told(_once(values, item.repeats) if item.repeats else values, refused, item.combine)


def _about(labels: Labels, item: Series, mine: Mine | None) -> bool:
    if item.where and not all(labels.get(key, "") in values for key, values in item.where):
        return False
    return mine is None or mine(labels, item.whole)


def _value(sample: Sample, item: Series, page: Page) -> float | None:
    if item.code:
        code = sample.labels.get(item.code, "")
        return float(code) if sample.value and code.isascii() and code.isdigit() else (None if sample.value else 0.0)
    if item.combine == "any":
        return float(sample.value > 0)
    if not item.less:
        return sample.value * item.scale
    taken = next((other.value for other in page.samples.get(item.less, ()) if other.labels == sample.labels), None)
    return None if taken is None or taken > sample.value else (sample.value - taken) * item.scale


def _once(values: list[tuple[Labels, float]], repeats: tuple[str, ...]) -> list[tuple[Labels, float]]:
    """One line of those that differ in `repeats` alone."""
    kept: dict[tuple[tuple[str, str], ...], tuple[Labels, float]] = {}
    for labels, value in values:
        key = tuple(sorted(pair for pair in labels.items() if pair[0] not in repeats))
        if key not in kept or value > kept[key][1]:
            kept[key] = (labels, value)
    return list(kept.values())


def _believed(quantity: str, told: _Told) -> list[tuple[Labels, float]]:
    """The values that this quantity can have; none of them where one that is needed is missing."""
    checked = [(labels, believed(quantity, value)) for labels, value in told.values]
    good = [(labels, value) for labels, value in checked if value is not None]
    partial = told.refused or len(good) < len(checked)
    return [] if partial and (told.combine or combine_of(quantity)) in _NEEDS_ALL else good


def combined(quantity: str, item: Series, values: Sequence[float]) -> float:
    """At least one value → the one that counts."""
    match item.combine or combine_of(quantity):
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

"""Generates docs/reference/signals.md from the tables of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.signals import KINDS, table
from lbctl.signals.signal import COUNTERS, SIGNALS, UNITS
from lbctl.signals.source import MetricSeries, MetricsTable

_INTRODUCTION = """\
<!-- Generated from lbctl/signals by `python -m tests.docs.regenerate`; edit the tables there. -->

# Signals of model servers and GPUs

`telemetry.sources` of a pool, or of a replica, name pages and their `kind`. Of each page only the metrics below are
read. The first name that the page has is taken; a name that is absent, a value that is no finite number from 0
on, and a series that occurs twice are unknown, never 0. Several engines, ranks, models or GPUs of a page become one
number by the rule of the signal. Of several sources, the first in the list with a fresh value for a signal gives it.

Evidence is what the `adaptive` strategy needs: the speed at the present batch. **tokens**: times between tokens, with
the tokens of each step. **batches**: times in the model, with the inputs of each execution. A pool whose sources give
none stays on its capacities.
"""
_ORDER = {name: place for place, name in enumerate((*SIGNALS, *COUNTERS))}


def page() -> str:
    """Return the text of docs/reference/signals.md."""
    tables = [table(kind) for kind in KINDS]
    blocks = [_INTRODUCTION, f"## Signals\n\n{_signals()}", f"## Kinds\n\n{_kinds(tables)}", _others(), _devices()]
    return "\n".join([*blocks, *map(_details, tables)])


def _signals() -> str:
    rows = ((f"`{name}`", spec.unit, spec.combine, spec.description) for name, spec in SIGNALS.items())
    return _table(("signal", "unit", "of several lines", "what it is"), rows)


def _kinds(tables: Iterable[MetricsTable]) -> str:
    rows = (
        (f"`{item.kind}`", item.title, ", ".join(_signals_of(item)), _evidence(item), item.heartbeat or "–")
        for item in tables
    )
    return _table(("kind", "source", "signals", "evidence", "progress moves with"), rows)


def _signals_of(table: MetricsTable) -> Iterator[str]:
    """Yield the signals that result from the table, including those that are differences of counters."""
    names = set(table.series)
    names |= {name for name, needed in _DERIVED.items() if needed <= names}
    if table.heartbeat:
        names.add("progress")
    return (f"`{name}`" for name in SIGNALS if name in names)


_DERIVED = {
    "ttft": {"ttft_seconds", "ttft_count"},
    "token_latency": {"itl_seconds", "itl_count"},
    "throughput": {"decode_tokens"},
    "cache_hits": {"cache_found", "cache_lookups"},
}


def _evidence(table: MetricsTable) -> str:
    return f"**{table.evidence}**" if table.evidence else f"none: {table.no_evidence}"


def _others() -> str:
    units = ", ".join(f"`{name}`" for name in UNITS)
    return f"""\
## `custom` and `prometheus`

`custom` reads a metric that the fleet names: `metric`, `signal`, and `unit` where it is not the signal's own. For
`ttft` and `token_latency` the metric may be a histogram; for `throughput` a metric in `tokens` is a counter.

`prometheus` asks any server that answers PromQL (`/api/v1/query`): `query`, `signal`, `unit`. Several series become one
by the signal's rule; no series is unknown. The answer does not say how old a sample is, and Prometheus repeats one for
up to five minutes: a query that must not, says so, as `x and time() - timestamp(x) < 30`.

Units: {units}.
"""


def _devices() -> str:
    return """\
## Templates and devices

`{address}`, `{host}`, `{port}`, `{name}` and `{device}` are replaced in `url`, `query` and `match_labels`; several
devices are in a query with `|` between them. `devices` of a replica are strings: indices (`["0"]`), UUIDs
(`["GPU-…"]`) or MIG slices (`["0:3"]`: GPU instance 3 of GPU 0). On a page that names GPUs, lines of other GPUs are not
the replica's; without `devices` all are. `match_labels: {gpu: "{device}"}` says the same in words.
"""


def _details(table: MetricsTable) -> str:
    lines = [f"## {table.title} (`{table.kind}`)\n", _series(table)]
    notes = [f"- {note}\n" for note in table.notes]
    if table.reserves_memory:
        notes.append("- it takes the GPU's memory at its start: free memory is not judged\n")
    notes += (f"- removed in newer versions: `{old}`; now {_instead(new)}\n" for old, new in table.removed.items())
    return "\n".join([*lines, "".join(notes)] if notes else lines)


def _instead(new: str) -> str:
    return new if " " in new else f"`{new}`"


def _series(table: MetricsTable) -> str:
    rows = [
        (f"`{quantity}`", _metric(series), _unit(quantity, series), series.versions)
        for quantity, aliases in sorted(table.series.items(), key=lambda pair: _ORDER[pair[0]])
        for series in aliases
    ]
    return _table(("quantity", "metric", "in", "versions"), rows)


def _metric(series: MetricSeries) -> str:
    where = ", ".join(f'{key}="{" or ".join(values)}"' for key, values in series.where if values != ("",))
    text = " + ".join(f"`{name}`" for name in series.metrics)
    if where:
        text += f" with `{where}`"
    if series.less:
        text += f" − `{series.less}`"
    return f"{text}, label `{series.code}`" if series.code else text


def _unit(quantity: str, series: MetricSeries) -> str:
    """The unit on the page: lbctl's own, or the one with this factor."""
    base = SIGNALS[quantity].unit if quantity in SIGNALS else _UNITS_OF_SUMS.get(quantity, "count")
    return next((name for name, (unit, factor) in UNITS.items() if unit == base and factor == series.scale), base)


_UNITS_OF_SUMS = {"ttft_seconds": "seconds", "itl_seconds": "seconds", "compute_seconds": "seconds"}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

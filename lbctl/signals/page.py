"""Generates docs/reference/signals.md from the tables of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.signals import KINDS, table
from lbctl.signals.signal import COUNTERS, SIGNALS, UNITS
from lbctl.signals.source import MetricSeries, MetricsTable

_INTRODUCTION = """\
<!-- Generated from lbctl/signals by `python -m tests.docs.regenerate`; edit the tables there. -->

# Signals of model servers and GPUs

`telemetry.sources` of a pool or a replica names metrics pages and their `kind`. lbctl reads only the metrics below.

- Of several names for a quantity, lbctl uses the first one on the page.
- A missing name, a value that is not a finite number of at least 0, and a duplicate series are unknown, never 0.
- If a page has several engines, ranks, models or GPUs, their values are combined by the rule of the signal.
- If a replica has several sources, the first one in the list with a current value for the signal is used.

The `adaptive` strategy needs *evidence*: the speed at the present batch. With **tokens**, the page has times between
tokens, and the tokens of each step. With **batches**, it has times in the model, and the inputs of each execution. If
the sources of a pool have no evidence, its weights are the capacities.
"""
_ORDER = {name: place for place, name in enumerate((*SIGNALS, *COUNTERS))}


def page() -> str:
    """Return the text of docs/reference/signals.md."""
    tables = [table(kind) for kind in KINDS]
    blocks = [_INTRODUCTION, f"## Signals\n\n{_signals()}", f"## Kinds\n\n{_kinds(tables)}", _others(), _devices()]
    return "\n".join([*blocks, *map(_details, tables)])


def _signals() -> str:
    rows = ((f"`{name}`", spec.unit, spec.combine, spec.description) for name, spec in SIGNALS.items())
    return _table(("signal", "unit", "combined by", "meaning"), rows)


def _kinds(tables: Iterable[MetricsTable]) -> str:
    rows = (
        (f"`{item.kind}`", item.title, ", ".join(_signals_of(item)), _evidence(item), item.heartbeat or "–")
        for item in tables
    )
    return _table(("kind", "source", "signals", "evidence", "progress changes with"), rows)


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

`custom` reads a metric that the fleet names by `metric` and `signal`. Set `unit` if the metric has another unit than
the signal. For `ttft` and `token_latency`, the metric may be a histogram. For `throughput`, a metric in `tokens` is a
counter.

`prometheus` sends `query` to a server with PromQL (`/api/v1/query`), for a `signal` and a `unit`. Several series are
combined by the signal's rule. Without a series, the signal is unknown. The answer does not contain the age of a sample,
and Prometheus repeats a sample for up to five minutes. To exclude old samples, extend the query:
`x and time() - timestamp(x) < 30`.

Units: {units}.
"""


def _devices() -> str:
    return """\
## Templates and devices

`url`, `query` and `match_labels` may contain `{address}`, `{host}`, `{port}`, `{name}` and `{device}`. In a query,
several devices are separated by `|`.

`devices` of a replica are strings: indices (`["0"]`), UUIDs (`["GPU-…"]`) or MIG slices (`["0:3"]`: GPU instance 3 of
GPU 0). If a page names GPUs, lbctl reads only the lines of these devices; without `devices`, it reads all lines.
`match_labels: {gpu: "{device}"}` has the same effect.
"""


def _details(table: MetricsTable) -> str:
    lines = [f"## {table.title} (`{table.kind}`)\n", _series(table)]
    notes = [f"- {note}\n" for note in table.notes]
    if table.reserves_memory:
        notes.append("- reserves GPU memory at its start, so free memory is not checked\n")
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

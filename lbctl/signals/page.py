"""Generates docs/reference/signals.md from the tables of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.signals import KINDS, table
from lbctl.signals.signal import COUNTERS, RATES, SIGNALS, UNITS
from lbctl.signals.source import MetricSeries, MetricsTable

_INTRODUCTION = """\
<!-- Generated from lbctl/signals by `python -m tests.docs.regenerate`; edit the tables there. -->

# Signals of model servers and GPUs

`telemetry.sources` of a pool or a replica lists metrics pages and their `kind`. lbctl reads only the metrics below.

- If a quantity has several names, lbctl uses the first one in the list that the page contains.
- A value is unknown, never 0, if its name is missing, if it is not a finite, non-negative number, or if the
  page contains its series twice.
- If a page has several engines, ranks, models or GPUs, lbctl combines their values according to the signal.
- If a replica has several sources, lbctl uses the first source in the list that has a current value for the signal.

The `adaptive` strategy needs *evidence*: the speed at the current batch size. **tokens** means that the page has the
times between tokens and the number of tokens in each step. **batches** means that it has the times in the model and the
number of inputs in each execution. If a pool's sources provide no evidence, its weights equal its capacities.
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
    """Yield the signals that result from the table, including those derived from counters."""
    names = set(table.series)
    names |= {name for name, needed in _DERIVED.items() if needed <= names}
    if table.heartbeat:
        names.add("progress")
    return (f"`{name}`" for name in SIGNALS if name in names)


_DERIVED = {
    "ttft": {"ttft_seconds", "ttft_count"},
    "token_latency": {"itl_seconds", "itl_count"},
    "cache_hits": {"cache_found", "cache_lookups"},
    **{name: {counter} for name, counter in RATES.items()},
}


def _evidence(table: MetricsTable) -> str:
    return f"**{table.evidence}**" if table.evidence else f"none: {table.no_evidence}"


def _others() -> str:
    units = ", ".join(f"`{name}`" for name in UNITS)
    return f"""\
## `custom` and `prometheus`

`custom` reads the metric that is named in `metric` and uses it as the signal in `signal`. Set `unit` if the metric's
unit differs from the signal's unit. For `ttft` and `token_latency`, the metric can be a histogram. For `throughput`, a
metric with the unit `tokens` must be a counter.

`prometheus` sends `query` to a server that supports PromQL (`/api/v1/query`). The result is the value of `signal`, in
`unit`. If the result has several series, lbctl combines them according to the signal. Without a series, the signal is
unknown. The response does not contain the age of a sample, and Prometheus repeats a sample for up to five minutes. To
exclude old samples, extend the query:
`x and time() - timestamp(x) < 30`.

Units: {units}.
"""


def _devices() -> str:
    return """\
## Templates and devices

`url`, `query` and `match_labels` can contain `{address}`, `{host}`, `{port}`, `{name}` and `{device}`. In a query,
several devices are separated by `|`.

The `devices` of a replica are strings: indices (`["0"]`), UUIDs (`["GPU-…"]`) or MIG slices (`["0:3"]`: GPU instance 3
of GPU 0). If a page names GPUs, lbctl reads only the lines of these devices. Without `devices`, lbctl reads all lines.
`match_labels: {gpu: "{device}"}` has the same effect.
"""


def _details(table: MetricsTable) -> str:
    lines = [f"## {table.title} (`{table.kind}`)\n", _series(table)]
    notes = [f"- {note}\n" for note in table.notes]
    if table.reserves_memory:
        notes.append("- The engine reserves GPU memory when it starts, so free memory is not checked.\n")
    if table.running_includes_queue:
        notes.append("- `running` includes the requests in `queue`.\n")
    notes += (
        f"- Newer versions no longer report `{old}`. Use {_instead(new)}.\n" for old, new in table.removed.items()
    )
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
    conditions = [(key, " or ".join(values)) for key, values in series.where if values != ("",)]
    conditions += [(key, f"{prefix}…") for key, prefix in series.where_prefix]
    where = ", ".join(f'{key}="{value}"' for key, value in conditions)
    text = " + ".join(f"`{name}`" for name in series.metrics)
    if where:
        text += f" with `{where}`"
    if series.less:
        text += f" − `{series.less}`"
    return f"{text}, label `{series.code}`" if series.code else text


def _unit(quantity: str, series: MetricSeries) -> str:
    """Return the unit on the page: the unit with the series' factor, or lbctl's own unit."""
    base = SIGNALS[quantity].unit if quantity in SIGNALS else _UNITS_OF_SUMS.get(quantity, "count")
    return next((name for name, (unit, factor) in UNITS.items() if unit == base and factor == series.scale), base)


_UNITS_OF_SUMS = {"ttft_seconds": "seconds", "itl_seconds": "seconds", "compute_seconds": "seconds"}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

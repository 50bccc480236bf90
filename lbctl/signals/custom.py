"""`kind: custom`: a metric that nobody but the fleet knows. `metric`, its `unit` and the `signal` that it is.

For `ttft` and `token_latency` the metric may be a histogram: its `_sum` and `_count` are read too. For `throughput` a
metric in `tokens` is a counter, one in `tokens/s` a gauge.
"""

from __future__ import annotations

from lbctl.base.diagnostics import did_you_mean
from lbctl.signals.signal import SIGNALS, UNITS
from lbctl.signals.source import Series, Table

_HISTOGRAMS = {"ttft": ("ttft_seconds", "ttft_count"), "token_latency": ("itl_seconds", "itl_count")}


def problem(signal: str, unit: str | None) -> str | None:
    """Why this unit cannot be the signal's; None where it can."""
    if unit is None:
        return None
    if unit not in UNITS:
        return f"unknown unit {unit} ({did_you_mean(unit, tuple(UNITS)) or 'one of ' + ', '.join(UNITS)})"
    kept, meant = UNITS[unit][0], SIGNALS[signal].unit
    if kept == meant or (signal == "throughput" and kept == "tokens") or {kept, meant} <= _COUNTS:
        return None
    fitting = ", ".join(name for name, (unit, _) in UNITS.items() if unit == meant)
    return f"{signal} cannot be in {unit}: {fitting}"


_COUNTS = {"requests", "count", "tokens"}


def scale(unit: str | None) -> float:
    """Factor to the unit that lbctl keeps."""
    return UNITS.get(unit or "", ("", 1.0))[1]


def table(metric: str | None, signal: str | None, unit: str | None) -> Table:
    """A table of that one metric; an empty one where the fleet does not say which, or in a unit that cannot be."""
    known = metric and signal in SIGNALS and not problem(signal or "", unit)
    return Table(
        kind="custom",
        title=metric or "custom",
        series=_series(metric or "", signal or "", unit) if known else {},
        without="the fleet names a metric, not the batch that was behind it",
        heartbeat="steps" if signal == "progress" else "",
    )


def _series(metric: str, signal: str, unit: str | None) -> dict[str, tuple[Series, ...]]:
    if signal == "throughput" and unit == "tokens":
        return {"decode_tokens": (Series(metric),)}
    factor = scale(unit)
    series: dict[str, tuple[Series, ...]] = {signal: (Series(metric, factor),)}
    if signal in _HISTOGRAMS:
        seconds, count = _HISTOGRAMS[signal]
        series |= {seconds: (Series(f"{metric}_sum", factor),), count: (Series(f"{metric}_count"),)}
    return series

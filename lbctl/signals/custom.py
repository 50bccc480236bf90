"""`kind: custom`: a metric that the fleet defines by `metric`, its `unit` and the `signal` that it represents.

For `ttft` and `token_latency`, the metric may be a histogram: its `_sum` and `_count` are then read. For `throughput`,
a metric with the unit `tokens` must be a counter, and a metric with the unit `tokens/s` must be a gauge.
"""

from __future__ import annotations

from lbctl.base.diagnostics import did_you_mean
from lbctl.signals.signal import SIGNALS, UNITS
from lbctl.signals.source import MetricSeries, MetricsTable

_HISTOGRAMS = {"ttft": ("ttft_seconds", "ttft_count"), "token_latency": ("itl_seconds", "itl_count")}


def unit_problem(signal: str, unit: str | None) -> str | None:
    """Return the reason why the signal cannot have this unit; None if it can."""
    if unit is None:
        return None
    if unit not in UNITS:
        return f"unknown unit {unit} ({did_you_mean(unit, tuple(UNITS)) or 'one of ' + ', '.join(UNITS)})"
    base_unit, signal_unit = UNITS[unit][0], SIGNALS[signal].unit
    if (
        base_unit == signal_unit
        or (signal == "throughput" and base_unit == "tokens")
        or {base_unit, signal_unit} <= _COUNTS
    ):
        return None
    allowed = ", ".join(name for name, (unit, _) in UNITS.items() if unit == signal_unit)
    return f"{signal} cannot be in {unit}: {allowed}"


_COUNTS = {"requests", "count", "tokens"}


def scale(unit: str | None) -> float:
    """Return the factor that converts `unit` to lbctl's unit."""
    return UNITS.get(unit or "", ("", 1.0))[1]


def table(metric: str | None, signal: str | None, unit: str | None) -> MetricsTable:
    """Return a table with only this metric; it is empty if the metric or signal is missing, or the unit is invalid."""
    is_valid = metric and signal in SIGNALS and not unit_problem(signal or "", unit)
    return MetricsTable(
        kind="custom",
        title=metric or "custom",
        series=_series(metric or "", signal or "", unit) if is_valid else {},
        no_evidence="the fleet defines a metric, but no batch size",
        heartbeat="steps" if signal == "progress" else "",
    )


def _series(metric: str, signal: str, unit: str | None) -> dict[str, tuple[MetricSeries, ...]]:
    if signal == "throughput" and unit == "tokens":
        return {"decode_tokens": (MetricSeries(metric),)}
    factor = scale(unit)
    series: dict[str, tuple[MetricSeries, ...]] = {signal: (MetricSeries(metric, factor),)}
    if signal in _HISTOGRAMS:
        seconds, count = _HISTOGRAMS[signal]
        series |= {seconds: (MetricSeries(f"{metric}_sum", factor),), count: (MetricSeries(f"{metric}_count"),)}
    return series

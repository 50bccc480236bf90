"""The figures on the page: how each is calculated and printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.peers.intervals import Interval, mean_of
from tests.benchmarks.peers.results import Result


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a result. Less is better unless `more_is_better`."""

    name: str
    """Identifier in `reasons.yaml`."""
    title: str
    unit: str
    form: Callable[[float], str]
    of: Callable[[Result], float]
    more_is_better: bool = False

    def of_seeds(self, results: Sequence[Result]) -> Interval:
        """Return the mean of the seeds with its interval.

        This applies to a 99th percentile too. The requests of a run depend on each other, because they wait for each
        other: at a load of 85 %, an interval from the order of all requests contains the percentile in 20 % of cases.
        """
        values = [self.of(each) for each in results]
        return mean_of(values) if len(values) > 1 else Interval(values[0], values[0], values[0])

    def text(self, value: float) -> str:
        """Return the value with its unit."""
        return f"{self.form(value)} {self.unit}".rstrip()


def _seconds(value: float) -> str:
    """Three significant digits."""
    return f"{value:#.3g}".rstrip(".") if value else "0"


def _decimals(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{count}f}"


def _percent(value: float | None) -> float:
    return math.nan if value is None else 100 * value


TTFT_P50 = Figure("ttft_p50", "TTFT p50", "s", _seconds, lambda it: it.first.p50 / 1000)
TTFT_P99 = Figure("ttft_p99", "TTFT p99", "s", _seconds, lambda it: it.first.p99 / 1000)
WHOLE_P50 = Figure("whole_p50", "whole p50", "s", _seconds, lambda it: it.whole.p50 / 1000)
WHOLE_P99 = Figure("whole_p99", "whole p99", "s", _seconds, lambda it: it.whole.p99 / 1000)
FAILED = Figure("failed", "failed requests", "%", _decimals(2), lambda it: 100 * it.failed / it.requests)
TOKENS = Figure("tokens", "tokens/s", "", _decimals(0), lambda it: it.tokens_per_s, more_is_better=True)
CACHED = Figure("cached", "cached", "%", _decimals(0), lambda it: _percent(it.cached), more_is_better=True)
SHARE_ERROR = Figure("share_error", "share error", "%", _decimals(1), lambda it: _percent(it.share_error))
CPU = Figure("cpu", "CPU", "ms", _decimals(2), lambda it: it.cpu.data_path)
CONTROL_CPU = Figure("control_cpu", "control CPU", "ms", _decimals(2), lambda it: it.cpu.control)
TOTAL_CPU = Figure("total_cpu", "CPU", "ms", _decimals(2), lambda it: it.cpu.data_path + it.cpu.control)
MEMORY = Figure("memory", "memory", "MiB", _decimals(0), lambda it: it.memory.data_path)
CONTROL_MEMORY = Figure("control_memory", "control memory", "MiB", _decimals(0), lambda it: it.memory.control)
TOTAL_MEMORY = Figure("total_memory", "memory", "MiB", _decimals(0), lambda it: it.memory.data_path + it.memory.control)
COMPARED = (TTFT_P50, TTFT_P99, WHOLE_P50, WHOLE_P99, FAILED)
"""The figures that decide where lbctl loses and wins."""

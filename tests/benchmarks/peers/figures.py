"""The figures on the page: how each is calculated and printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.peers.intervals import Interval, mean_of, percentile
from tests.benchmarks.peers.results import Result, Times


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a result. Less is better unless `more_is_better`."""

    name: str
    """Identifier in `reasons.yaml`."""
    title: str
    unit: str
    form: Callable[[float], str]
    of: Callable[[Result], float]
    times: Callable[[Result], Times] | None = None
    """If set, the figure is the 99th percentile of these times, in seconds."""
    more_is_better: bool = False

    def of_seeds(self, results: Sequence[Result]) -> Interval:
        """Return the figure of all seeds together, with its interval.

        A 99th percentile is one of all requests. Other figures are means of the seeds.
        """
        if self.times is None:
            values = [self.of(each) for each in results]
            return mean_of(values) if len(values) > 1 else Interval(values[0], values[0], values[0])
        tails = sorted((value / 1000 for each in results for value in self.times(each).tail), reverse=True)
        return percentile(tails, sum(each.requests for each in results), 99)

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
TTFT_P99 = Figure("ttft_p99", "TTFT p99", "s", _seconds, lambda it: it.first.p99 / 1000, lambda it: it.first)
WHOLE_P50 = Figure("whole_p50", "whole p50", "s", _seconds, lambda it: it.whole.p50 / 1000)
WHOLE_P99 = Figure("whole_p99", "whole p99", "s", _seconds, lambda it: it.whole.p99 / 1000, lambda it: it.whole)
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

"""The figures of `lbctl simulate` as sentences and cells of a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Self

import click

from lbctl.simulate.results import Latency, Summary

HEAD = ("POLICY", "TTFT P50", "P95", "P99", "PER TOKEN P99", "TOTAL P99", "TOKENS/S", "BUSY", "CACHE", "FAILED")


def load_sentence(load: float) -> str:
    """Return what the offered load means."""
    if load >= 1:
        return f"The load is {100 * load:.0f} % of what the engines carry (Σλ ≥ Σμ): queues grow without end."
    return f"The load is {100 * load:.0f} % of what the engines carry (Σλ < Σμ)."


def recommendation(summaries: Sequence[Summary]) -> str:
    """Return which policy is best, and by how much; empty for a single one."""
    ranked = sorted(summaries, key=lambda item: (round(item.failed, 3), item.ttft.p99))
    best, rest = ranked[0], ranked[1:]
    if not rest:
        return ""
    worst = rest[-1]
    if worst.failed > best.failed + 0.001:
        least, most = _percent(best.failed), _percent(worst.failed)
        return f"{best.policy} fails least: {least} of the requests; {worst.policy} fails {most}."
    factor = worst.ttft.p99 / best.ttft.p99 if best.ttft.p99 else 1.0
    if factor < 1.05:
        return "The policies do not differ by more than 5 % in the 99th percentile of the time to the first token."
    return (
        f"{best.policy} has the lowest 99th percentile of the time to the first token: {_seconds(best.ttft.p99)}; "
        f"{worst.policy} has {_seconds(worst.ttft.p99)} ({factor:.2f} ×)."
    )


class ProgressBar:
    """A progress bar on a terminal, nothing elsewhere. `length`: the number of replays."""

    def __init__(self, length: int) -> None:
        self._done = 0
        label = "Simulating"
        is_shown = sys.stderr.isatty()
        self._bar = click.progressbar(length=1000 * length, label=label, file=sys.stderr) if is_shown else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.__exit__(None, None, None)

    def next(self) -> None:
        """Note that a replay has ended."""
        self._done += 1
        self.report(0.0)

    def report(self, part: float) -> None:
        """Show the part of the present replay that is done."""
        if self._bar:
            self._bar.update(max(0, int(1000 * (self._done + part)) - self._bar.pos))


def row_of(item: Summary) -> tuple[str, ...]:
    """Return the cells of one policy, in the order of HEAD."""
    busy = sorted(item.utilisation.values())
    return (
        item.policy,
        *_latencies(item.ttft),
        _seconds(item.tpot.p99),
        _seconds(item.total.p99),
        f"{item.throughput:.0f}",
        f"{100 * busy[0]:.0f}–{100 * busy[-1]:.0f}%",
        "-" if item.cache_hits is None else _percent(item.cache_hits),
        _percent(item.failed),
    )


def _latencies(latency: Latency) -> tuple[str, ...]:
    return _seconds(latency.p50), _seconds(latency.p95), _seconds(latency.p99)


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.3g} s"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%" if value else "0%"

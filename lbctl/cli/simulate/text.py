"""Formats the `lbctl simulate` figures as sentences and table cells."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import click

from lbctl.ir import load_bound
from lbctl.simulate.queue_figures import FlowFigures
from lbctl.simulate.results import Latency, Summary

HEAD = ("POLICY", "TTFT P50", "P95", "P99", "PER TOKEN P99", "TOTAL P99", "TOKENS/S", "BUSY", "CACHE", "FAILED", "SHED")
WIDE = (
    *HEAD[:4], "PER TOKEN P50", "P95", "P99", "TOTAL P50", "P95", "P99", *HEAD[6:8], "SPREAD", *HEAD[8:], "PREEMPTED"
)  # fmt: skip
QUEUE_HEAD = ("QUEUE", "OF", "REQUESTS", "WAITED", "WAIT P50", "P99", "MAX", "TTFT P99", "REJECTED", "LEFT", "IDLE")
_EQUAL = 1.05
_SAME_SHARE = 0.05
"""Maximum difference between shares that count as equal, relative to the mean share."""
_BUSY_GAP = 0.2
"""If BUSY exceeds the load by more than this, the output explains why."""
_MAX_NAMES = 8
_SEARCH_STEP = 0.85
"""Each replay in a search leaves this fraction of the remaining progress bar, because the number of replays is not
known in advance."""


def load_sentence(load: float, who: str) -> str:
    """Explain how much of the capacity is used by the offered load. `who` names the engines."""
    percent = f"The load is {100 * load:.0f} % of the capacity of {who}"
    if load >= 1:
        return f"{percent} (Σλ ≥ Σμ): queues grow without bound."
    if load >= load_bound.BUSY:
        return f"{percent} (Σλ < Σμ); queues are long at {100 * load_bound.BUSY:.0f} % and above."
    return f"{percent} (Σλ < Σμ)."


def burst_sentence(requests: int, carried: float, who: str) -> str:
    """Return the sentence that replaces `load_sentence` if all requests arrive at the same time."""
    return (
        f"All requests in the load ({requests:,}) arrive at the same time, so it has no rate; "
        f"{who} can handle up to {carried:.3g} such requests/s."
    )


def recommendation(summaries: Sequence[Summary], loads: Mapping[str, float]) -> str:
    """Describe the best row, its advantage, and the reason for it.

    `loads` maps each fleet to its load. Rows for overloaded fleets are never recommended.
    """
    fitting = [item for item in summaries if loads[item.fleet] < 1]
    if not fitting:
        least = min(loads.values())
        return f"The fleet is overloaded with every algorithm. {load_bound.advice(least)}."
    ranked = sorted(fitting, key=lambda item: (round(item.unanswered, 3), item.ttft.p99))
    best, rest = ranked[0], ranked[1:]
    if not rest:
        others = " that is not overloaded" if len(summaries) > 1 else ""
        return f"{best.row} is the only row{others}: its 99th percentile is {_figures(best)}."
    worst = rest[-1]
    if worst.unanswered > best.unanswered + 0.001:
        least_text, most = _percent(best.unanswered), _percent(worst.unanswered)
        head = f"{best.row} leaves the fewest requests unanswered: {least_text}; {worst.row} leaves {most}"
    elif worst.ttft.p99 < _EQUAL * best.ttft.p99:
        lacking = f"; each leaves {_percent(best.unanswered)} unanswered" if best.unanswered else ""
        return (
            "Use any row: they differ by at most 5 % in the 99th percentile of the time to the first token "
            f"({_seconds(best.ttft.p99)}){lacking}."
        )
    else:
        factor = worst.ttft.p99 / best.ttft.p99
        head = (
            f"{best.row} has the lowest 99th percentile of the time to the first token: {_seconds(best.ttft.p99)}; "
            f"{worst.row} has {_seconds(worst.ttft.p99)} ({factor:.2f} ×)"
        )
    return f"{head}. {_reason(best, worst, loads)}"


def busy_sentence(summaries: Sequence[Summary], loads: Mapping[str, float]) -> str:
    """Explain BUSY if it is far above the load, or return an empty string otherwise.

    `loads` maps each fleet or row to its load.
    """
    for item in summaries:
        load = loads.get(item.fleet, loads.get(item.row, 1.0))
        if max(item.utilisation.values(), default=0.0) > load + _BUSY_GAP:
            return (
                "BUSY is the share of time with at least one request in the batch. It can be near 100 % at a small "
                "load: a busy engine takes more requests into its batch."
            )
    return ""


def drained_sentence(summaries: Sequence[Summary]) -> str:
    """List the drained replicas in a sentence. Empty if none are drained."""
    names = dict.fromkeys(f"{item.fleet}/{name}" if item.fleet else name for item in summaries for name in item.drained)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    shown = f"{', '.join([*names][:_MAX_NAMES])}{more}"
    return f"Drained replicas, which get no requests and are not included in BUSY: {shown}." if names else ""


def _figures(item: Summary) -> str:
    return f"{_seconds(item.ttft.p99)} to the first token and {_seconds(item.tpot.p99)} for each later token"


def _reason(best: Summary, worst: Summary, loads: Mapping[str, float]) -> str:
    """Return the reason for the difference, as far as it can be seen in the figures."""
    mine, others = loads[best.fleet], loads[worst.fleet]
    if mine < 0.95 * others:
        return (
            f"Its fleet has more capacity: the load is {100 * mine:.0f} % of its capacity, and {100 * others:.0f} % of "
            "the other's."
        )
    if best.cache_hits is not None and worst.cache_hits is not None and best.cache_hits > worst.cache_hits + 0.03:
        return (
            f"It finds {_percent(best.cache_hits)} of prompt tokens in prefix caches, the other "
            f"{_percent(worst.cache_hits)}."
        )
    if worst.spread > best.spread + 0.03:
        return (
            f"It keeps engines busy for {_busy(best)} of the time; the other keeps them busy less evenly: "
            f"{_busy(worst)}."
        )
    if worst.preempted > 1.2 * best.preempted + 10:
        return f"It preempted {best.preempted:,} sequences because the cache was full, the other {worst.preempted:,}."
    names = dict.fromkeys((*best.share, *worst.share))
    share, other, name = max(
        ((best.share.get(name, 0.0), worst.share.get(name, 0.0), name) for name in names),
        key=lambda item: abs(item[0] - item[1]),
    )
    is_alike = abs(share - other) * len(names) < _SAME_SHARE
    given = (
        "Both send about the same number of requests to every replica"
        if is_alike
        else f"It sends {_percent(share)} of the requests to {name}, the other {_percent(other)}"
    )
    if _busy(best) != _busy(worst):
        return f"{given}; engines are busy {_busy(best)} of the time with it, and {_busy(worst)} with the other."
    when = "; only the arrival times at the replicas differ" if is_alike else ""
    return f"{given}, and engines are busy {_busy(best)} of the time with both{when}."


def best_answer(answers: Sequence[tuple[str, float | None, float | None]], *, most: bool) -> str:
    """Return a sentence about the best of these search results, which are (row, value, cost) tuples.

    If `most` is true, larger values are better.
    """
    answered = [(row, value, cost) for row, value, cost in answers if value is not None]
    if len(answers) < 2 or not answered:
        return ""
    if not most and all(cost is not None for _, _, cost in answered):
        row, value, cost = min(answered, key=lambda item: (item[2] or 0.0, item[1]))
        return f"{row} costs least: {replicas(value)} for {cost:,.2f} per hour."
    best = (max if most else min)(value for _, value, _ in answered)
    rows = ", ".join(row for row, value, _ in answered if value == best)
    return f"{rows}: {f'the highest rate, {best:.3g}/s' if most else f'the fewest replicas, {best:.0f}'}."


def replicas(count: float, many: str = "", one: str = "") -> str:
    """Format a number of replicas, followed by the appropriate suffix, `many` or `one`."""
    return f"1 replica{one}" if count == 1 else f"{count:.0f} replicas{many}"


class ProgressBar:
    """A progress bar on a terminal, hidden elsewhere. `length` is the number of replays or searches."""

    def __init__(self, length: int) -> None:
        self._done = 0
        self._left = 1.0
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
        """Record the end of a replay or a search."""
        self._done += 1
        self._left = 1.0
        self.report(0.0)

    def report(self, part: float) -> None:
        """Show the completed fraction of the current replay."""
        if self._bar:
            self._bar.update(max(0, int(1000 * (self._done + part)) - self._bar.pos))

    def report_search(self, part: float) -> None:
        """Show the completed fraction of one replay in the current search."""
        self.report(1.0 - self._left * (1.0 - part * (1.0 - _SEARCH_STEP)))

    def step(self) -> None:
        """Record the end of one replay in the current search."""
        self._left *= _SEARCH_STEP


def row_of(item: Summary) -> tuple[str, ...]:
    """Return the cells for one policy, in the order of HEAD."""
    return (
        item.row,
        *_latencies(item.ttft),
        _seconds(item.tpot.p99),
        _seconds(item.total.p99),
        f"{item.throughput:.0f}",
        _busy(item),
        "-" if item.cache_hits is None else _percent(item.cache_hits),
        _percent(item.failed),
        _percent(item.shed),
    )


def wide_row_of(item: Summary) -> tuple[str, ...]:
    """Return the cells for one policy, in the order of WIDE."""
    short = row_of(item)
    latencies = (*_latencies(item.ttft), *_latencies(item.tpot), *_latencies(item.total))
    return (item.row, *latencies, *short[6:8], _percent(item.spread), *short[8:], f"{item.preempted}")


def queue_rows(item: Summary) -> Iterator[tuple[str, ...]]:
    """Yield the cells for each row of one policy's queue, in the order of QUEUE_HEAD. Empty without a queue."""
    if item.queue is None:
        return
    yield _queue_row(item.row, "all requests", item.queue.total, item.queue.idle)
    for name, figures in item.queue.priorities.items():
        yield _queue_row(item.row, f"priority {name}", figures)
    for name, figures in item.queue.tenants.items():
        yield _queue_row(item.row, f"tenant {name}", figures)


def _queue_row(row: str, requests: str, figures: FlowFigures, idle: float | None = None) -> tuple[str, ...]:
    times = (figures.wait_p50, figures.wait_p99, figures.wait_max, figures.ttft_p99)
    return (
        row, requests, f"{figures.requests}", _share(figures.waited, figures), *map(_seconds, times),
        _share(figures.rejected, figures), _share(figures.left, figures), "" if idle is None else _seconds(idle),
    )  # fmt: skip


def _share(count: int, figures: FlowFigures) -> str:
    return _percent(count / figures.requests)


def _busy(item: Summary) -> str:
    busy = sorted(item.utilisation.values())
    return f"{100 * busy[0]:.0f}–{100 * busy[-1]:.0f}%"


def _latencies(latency: Latency) -> tuple[str, ...]:
    return _seconds(latency.p50), _seconds(latency.p95), _seconds(latency.p99)


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.3g} s"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%" if value else "0%"

"""Make docs/develop/benchmarks.md: medians and spread of every system in every case, with the losses and wins of
lbctl."""

from __future__ import annotations

import datetime
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.peers.cases import Case, cacheable
from tests.benchmarks.peers.client import ANSWER_TIMEOUT
from tests.benchmarks.peers.systems import WAYS
from tests.benchmarks.peers.trial import FAILED, Result

Table = Sequence[tuple[Case, Mapping[str, Sequence[Result]]]]
"""Each case with the available repetitions of each of its systems."""
_BUSY = 2.5
"""Load of the machine above which a repetition is marked."""
_WORSE = 1.05
_RULE = f"""\
For each mode of lbctl, the best of its three proxies is compared with the best alternative in the same case. A
difference below {100 * (_WORSE - 1):.0f} %, or within the spread of the repetitions, does not count.
"""
_Column = tuple[str, Callable[[Result], float], str]
"""Name, function that returns the figure, and format."""
_COLUMNS: tuple[_Column, ...] = (
    ("TTFT p50", lambda item: item.first_p50, "{:.2f}"),
    ("TTFT p99", lambda item: item.first_p99, "{:.2f}"),
    ("whole p50", lambda item: item.whole_p50, "{:.1f}"),
    ("whole p99", lambda item: item.whole_p99, "{:.1f}"),
    ("share error", lambda item: 100 * item.share_error, "{:.1f}"),
    ("failed", lambda item: 100 * item.failed, "{:.2f}"),
    ("cached", lambda item: 100 * item.hits, "{:.0f}"),
    ("data path", lambda item: item.data_path, "{:.2f}"),
)
_JUDGED = ("TTFT p50", "TTFT p99", "whole p50", "whole p99", "failed")
_INTRODUCTION = """\
# Benchmarks

This page compares lbctl with its alternatives: nginx, HAProxy and Envoy, configured manually as their documentation
advises, and the SGLang, vLLM and LiteLLM routers from their packages. Each system has its own set of identical
simulated engines (continuous batching, a prefix cache, vLLM's metrics, streamed answers). All systems receive the same
requests at the same times. The proxies and LiteLLM are configured with the replicas' weights (5 : 2 : 1). The other
routers do not support weights.

Written by `{command}` on {date}
({cores} cores, {machine}; {runs}):
{versions}

- Times are seconds: the median of the repetitions, with minimum and maximum. A client gives up if no data
  arrives for {patience:.0f} s. A first token or a whole answer that did not arrive counts as {failed:.0f} s.
  A run has a few hundred requests for each system, so the 99th percentile is one of the two or three slowest requests.
- "Share error" is the percentage of requests that should have gone to another replica, according to the engines'
  capacity. "Failed" is a percentage of the requests, and "cached" is a percentage of the prompt tokens.
- `static` is the output of `lbctl render`. `adaptive` is `lbctl serve` with weights from the engines' metrics. `pick`
  is `lbctl serve` with its picker. All modes use the default settings. The picker reads `x-session-id`, as the hashes
  do.
- "Data path" is the processor time of the proxy with its workers, and of the picker, in milliseconds per request.
  "Control" is the processor time of `lbctl serve` without the picker. `lbctl serve` runs at its own interval, so its
  time per request is higher with fewer requests.
- The largest engine is twice as fast as a 70B model on eight H100. All engines send one event for 16 tokens, so the
  cost of an event matters less here than with one event for each token. Answers have at most 160 tokens, except in
  chats. Clients open a new connection for each request.
- Only newer engines prepare prompts for a router (`/v1/chat/completions/render`). vllm-router queries the engines
  for a prepared prompt before each request, and continues without an answer.
- The rates do not saturate the engines or the clients:
  {harness}
"""


def page(table: Table, versions: Mapping[str, str], command: str, seconds: float, repetitions: int) -> str:
    """Return the text of the page."""
    runs = f"{repetitions} repetitions of {seconds:.0f} s each" if repetitions > 1 else f"one run of {seconds:.0f} s"
    head = _INTRODUCTION.format(
        command=command, date=datetime.datetime.now(datetime.UTC).date(), cores=os.cpu_count(), machine=_processor(),
        runs=runs, versions=", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        patience=ANSWER_TIMEOUT, failed=FAILED, harness=_harness(table),
    )  # fmt: skip
    body = [line for case, systems in table for line in _section(case, systems, seconds)]
    return "\n".join([head, *_missing(table, repetitions), *_verdict(table), *body]) + "\n"


def lines(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield a line for each system of one run, to show progress."""
    for name, each in results.items():
        figures = ", ".join(f"{column} {form.format(figure(each))}" for column, figure, form in _COLUMNS)
        yield f"  {name:<32} {figures}"
    for each in list(results.values())[:1]:
        yield (
            f"  load {each.load:.1f}, clients late by {each.late * 1000:.0f} ms (p99), of a core: clients "
            f"{each.clients:.0%}, engines {each.engines:.0%}"
        )


def _processor() -> str:
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    return next((row.partition(": ")[2] for row in rows if row.startswith("model name")), "unknown processor")


def _results(table: Table) -> list[Result]:
    return [result for _, systems in table for each in systems.values() for result in each]


def _harness(table: Table) -> str:
    every = _results(table)
    if not every:
        return "nothing was run."
    late, clients, engines = (max(map(each, every)) for each in (_late, lambda it: it.clients, lambda it: it.engines))
    return (
        f"the clients were late by at most {late:.0f} ms (99th percentile of a run). They used at most {clients:.0%} "
        f"of a core, the engines {engines:.0%}."
    )


def _late(result: Result) -> float:
    return result.late * 1000


def _missing(table: Table, repetitions: int) -> Iterator[str]:
    """Yield the cases and systems that did not run or did not start."""
    short = []
    for case, systems in table:
        left = {name: len(each) for name, each in systems.items() if len(each) < repetitions}
        if left:
            counts = {f"{count} of {repetitions}" for count in left.values()}
            is_all = len(left) == len(systems) and len(counts) == 1
            names = [f"all ({counts.pop()})"] if is_all else [f"{it} ({n} of {repetitions})" for it, n in left.items()]
            short.append(f"{case.name}: {', '.join(names)}")
    if short:
        yield f"**Not run, or run less often:** {'; '.join(short)}.\n"


def _section(case: Case, systems: Mapping[str, Sequence[Result]], seconds: float) -> Iterator[str]:
    yield f"\n## {case.name[0].upper()}{case.name[1:]}\n"
    yield case.description
    ideal = cacheable(case, seconds, 0)
    if ideal:
        yield f"An unbounded cache would hold {100 * ideal:.0f} % of the prompts' tokens."
    yield f"\n| | {' | '.join(name for name, _, _ in _COLUMNS)} |"
    yield "|---" * (len(_COLUMNS) + 1) + "|"
    for system, each in systems.items():
        if each:
            yield f"| {system} | {' | '.join(_cell(list(map(figure, each)), form) for _, figure, form in _COLUMNS)} |"
    reasons = [f"{system}: {text}" for system, each in systems.items() if (text := _reasons(each))]
    if reasons:
        yield f"\nWhy requests failed: {'; '.join(reasons)}."
    yield from _machine(systems)


def _machine(systems: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """Yield the load of the machine in each repetition; systems that run side by side share one."""
    count = max(map(len, systems.values()), default=0)
    loads = [max(each[number].load for each in systems.values() if number < len(each)) for number in range(count)]
    if loads:
        marked = ", ".join(f"{load:.1f}{' (busy)' if load > _BUSY else ''}" for load in loads)
        yield f"\nLoad of the machine in the repetitions, including this benchmark: {marked}."


def _reasons(each: Sequence[Result]) -> str:
    counts: Counter[str] = Counter()
    for result in each:
        counts.update(result.reasons)
    return ", ".join(f"{count} × {reason}" for reason, count in counts.items())


def _cell(values: Sequence[float], form: str) -> str:
    if any(map(math.isnan, values)):
        return "–"
    middle, least, most = (form.format(each(values)) for each in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least}–{most})"


def _verdict(table: Table) -> Iterator[str]:
    """Yield where lbctl loses and where it wins, compared with the best other system in each case."""
    has_one = any(len(each) == 1 for _, systems in table for each in systems.values())
    for title, better in (("loses", False), ("wins", True)):
        yield f"## Where lbctl {title}\n"
        yield _RULE + ("A single run of a case shows no spread: a small difference may be chance.\n" if has_one else "")
        rows = [row for case, systems in table for row in _compared(case, systems, better)]
        yield from rows or ["- Nowhere in these results."]
        yield ""
    yield from _cost(table)


def _compared(case: Case, systems: Mapping[str, Sequence[Result]], better: bool) -> Iterator[str]:
    """Yield a line for each mode of lbctl. A mode counts as its best proxy."""
    peers = {name: each for name, each in systems.items() if each and not name.startswith("lbctl ")}
    for way in WAYS:
        own = {name: each for name, each in systems.items() if each and name.startswith(f"lbctl {way},")}
        if own and peers:
            texts = [text for column in _COLUMNS if (text := _judged(column, own, peers, better))]
            if texts:
                yield f"- {case.name}, {way}: {'; '.join(texts)}."


def _judged(
    column: _Column, own: Mapping[str, Sequence[Result]], peers: Mapping[str, Sequence[Result]], better: bool
) -> str:
    """Return the figures of both if ours is better, or worse, by more than the margin of the rule; otherwise an empty
    text."""
    name, figure, form = column
    if name not in _JUDGED:
        return ""
    ours, theirs = _best(own, figure), _best(peers, figure)
    less, more = (ours[1], theirs[1]) if better else (theirs[1], ours[1])
    middles = statistics.median(less), statistics.median(more)
    if (
        middles[1] <= middles[0] * _WORSE
        or max(less) >= min(more)
        or form.format(middles[0]) == form.format(middles[1])
    ):
        return ""
    mine, other = (f"{form.format(statistics.median(values))} ({system})" for system, values in (ours, theirs))
    return f"{name} {mine} against {other}"


def _best(systems: Mapping[str, Sequence[Result]], figure: Callable[[Result], float]) -> tuple[str, list[float]]:
    """Return the system with the lowest median, and its figures."""
    values = {name: list(map(figure, each)) for name, each in systems.items()}
    return min(values.items(), key=lambda pair: statistics.median(pair[1]))


def _cost(table: Table) -> Iterator[str]:
    """Yield the processor time of each system over all cases."""
    yield "## Cost of a request\n"
    yield "Milliseconds of processor time, as the median of all runs of all cases.\n"
    yield "| | data path | control |"
    yield "|---|---|---|"
    every: dict[str, list[Result]] = {}
    for _, systems in table:
        for name, each in systems.items():
            every.setdefault(name, []).extend(each)
    for name, each in every.items():
        if each:
            paths, controls = ([figure(item) for item in each] for figure in (_data_path, _control))
            yield f"| {name} | {statistics.median(paths):.2f} | {statistics.median(controls):.2f} |"


def _data_path(result: Result) -> float:
    return result.data_path


def _control(result: Result) -> float:
    return result.control

"""`python -m tests.benchmarks.picking.queue [--seeds N] [--seconds S] [-k WORD]`: simulate the queue at the picker.

`lbctl.simulate` replays each load on 32 equal replicas with 64 sequences each: without a queue, with a queue and a
limit of 64 requests for each replica, and with a queue that recognises full replicas by reports. A row has:

- the 99th percentile of the time to first token of the other tenants or the high priority,
- the same figure if only they send requests, and the ratio of both (goal: at most 1.2),
- the same figure if each of their requests goes before any other one, which no order of the queue can improve while all
  sequences are in use,
- the tokens that the engines generated during the load, relative to the run without a queue (goal: at least 0.98),
- the longest time for which a replica had a place outside the reserve and no unread prompt while a request waited at
  the picker (goal: at most 50 ms),
- the longest wait of the lowest priority, and the share of its requests that got an answer,
- the share of all requests that the queue rejected.

docs/develop/picking-study.md has the figures of a run. `python -m tests.benchmarks.queue` measures real proxies.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from lbctl.base.percentiles import percentile_of
from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, CircuitBreaker, PickPolicy, Pool, QueuePolicy, Replica, Telemetry
from lbctl.pick.waiting import PRIORITIES
from lbctl.simulate.engine import CostModel, saturated_rate
from lbctl.simulate.load import conversation, poisson
from lbctl.simulate.policies import POLICIES
from lbctl.simulate.queue_figures import idle_seconds
from lbctl.simulate.replay import Replay, replay
from lbctl.simulate.setup import Setup
from lbctl.simulate.state import DONE
from lbctl.simulate.trace import Trace

REPLICAS, SLOTS = 32, 64
ENGINE = CostModel(sequences=SLOTS)
PROMPT, ANSWER = 1155.0, 211.0
"""Mean lengths of Azure's conversations, in tokens."""
MAX_RATIO, MIN_TOKENS, MAX_IDLE = 1.2, 0.98, 0.05
"""The goals."""
HIGH, NORMAL, LOW = range(len(PRIORITIES))
VARIANTS = ("no queue", "limit", "reports")
_RATE = REPLICAS * saturated_rate(1.0, PROMPT, ANSWER, ENGINE)
"""Requests per second that the replicas can answer."""
_WARM_UP = 20.0
"""Seconds from the beginning that do not count."""
_BURST_INTERVAL, _BURST_WORK = 10.0, 4.0
"""Seconds between two bursts, and the time in seconds for which a burst occupies all replicas."""
_HEAD = (
    f"{'LOAD':<22} {'VARIANT':<9} {'P99':>7} {'ALONE':>7} {'RATIO':>15} {'FIRST':>7} {'TOKENS':>15} {'IDLE':>17} "
    f"{'LOWEST':>8} {'ANSWERED':>9} {'REJECTED':>9}"
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds from the beginning, lengths in tokens, tenant, and priority."""

    at: float
    prompt: int
    answer: int
    tenant: str
    priority: int = NORMAL


@dataclass(frozen=True, slots=True)
class Load:
    """A load. `others`: the tenants whose latency is compared; empty: none."""

    name: str
    arrivals: Callable[[float, int], list[Arrival]]
    """Arguments: seconds, seed."""
    others: frozenset[str] = frozenset()


@dataclass(slots=True)
class Figures:
    """The figures of one variant over the seeds, in seconds."""

    first: list[float] = field(default_factory=list)
    """Times to first token of the others."""
    tokens: float = 0.0
    """Tokens that were generated during the load."""
    idle: float | None = None
    """Longest idle time of a replica; None if the variant sets no limit."""
    lowest_wait: float = 0.0
    lowest: list[bool] = field(default_factory=list)
    """Whether each request of the lowest priority got an answer."""
    requests: int = 0
    rejected: int = 0


# ── Loads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def steady(
    tenant: str, load: float, rate: float, seconds: float, seed: int, priority: int = NORMAL,
    lengths: tuple[float, float] = (PROMPT, ANSWER),
) -> list[Arrival]:  # fmt: skip
    """Return Poisson arrivals of a tenant at this part of `rate`. `lengths`: mean lengths of prompts and answers."""
    trace = poisson(load * rate, seconds, conversation(*lengths), f"{tenant} {seed}")
    columns = zip(trace.times, trace.prompts, trace.answers, strict=True)
    return [Arrival(*each, tenant, priority) for each in columns]


def together(*parts: Iterable[Arrival]) -> list[Arrival]:
    """Return the arrivals of all parts in the order of time."""
    return sorted(chain(*parts), key=lambda item: item.at)


def _tenants(count: int, load: float, seconds: float, seed: int) -> list[Arrival]:
    return together(*(steady(f"t{number}", load / count, _RATE, seconds, seed) for number in range(count)))


def _flood(seconds: float, seed: int) -> list[Arrival]:
    """Nine of ten tenants use 60 % of the capacity together, and the tenth sends ten times its share."""
    return together(_tenants(9, 0.6, seconds, seed), steady("flood", 1.0, _RATE, seconds, seed))


def _priorities(seconds: float, seed: int) -> list[Arrival]:
    """Each priority has less than the capacity, but the sum is 1.3 times the capacity."""
    parts = (("high", 0.4, HIGH), ("normal", 0.5, NORMAL), ("low", 0.4, LOW))
    return together(*(steady(name, load, _RATE, seconds, seed, priority) for name, load, priority in parts))


def _bursts(seconds: float, seed: int) -> list[Arrival]:
    """Nine tenants use 50 % of the capacity, and the tenth sends all its requests in bursts."""
    own, lengths = random.Random(f"bursts {seed}"), conversation(PROMPT, ANSWER)
    times = [_BURST_INTERVAL * (number + 0.5) for number in range(int(seconds / _BURST_INTERVAL))]
    bursts = [Arrival(at, *lengths(own), "bursts") for at in times for _ in range(round(_BURST_WORK * _RATE))]
    return together(_tenants(9, 0.5, seconds, seed), bursts)


def _flood_of(prompt: float, answer: float) -> Callable[[float, int], list[Arrival]]:
    """Return a flood with other lengths."""
    rate = REPLICAS * saturated_rate(1.0, prompt, answer, ENGINE)

    def arrivals(seconds: float, seed: int) -> list[Arrival]:
        parts = [steady(f"t{number}", 0.6 / 9, rate, seconds, seed, lengths=(prompt, answer)) for number in range(9)]
        return together(*parts, steady("flood", 1.0, rate, seconds, seed, lengths=(prompt, answer)))

    return arrivals


def _overload(seconds: float, seed: int) -> list[Arrival]:
    """Ten equal tenants send 1.3 times the capacity together."""
    return _tenants(10, 1.3, seconds, seed)


_NINE = frozenset(f"t{number}" for number in range(9))
LOADS = (
    Load("flood of one tenant", _flood, _NINE),
    Load("priorities", _priorities, frozenset({"high"})),
    Load("bursts of one tenant", _bursts, _NINE),
    Load("1.3 x overload", _overload),
    Load("long prompts", _flood_of(8000.0, 200.0), _NINE),
    Load("short answers", _flood_of(2048.0, 28.0), _NINE),
    Load("short prompts", _flood_of(60.0, 100.0), _NINE),
)


# ── Runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pool(variant: str) -> Pool:
    replicas = tuple(Replica(f"r{number}", Address("127.0.0.1", 1)) for number in range(REPLICAS))
    queue = None if variant == "no queue" else QueuePolicy(max_wait=10_000)
    return Pool(
        "pool",
        replicas,
        balance=Balance(pick=PickPolicy((), queue=queue)),
        circuit_breaker=CircuitBreaker(10**6, 10**6, 10**6, 10**6, None, SLOTS if variant == "limit" else None),
        telemetry=Telemetry(1_000),
    )


def _run(variant: str, arrivals: Sequence[Arrival], seed: int) -> Replay:
    trace = Trace(
        [item.at for item in arrivals],
        [item.prompt for item in arrivals],
        [item.answer for item in arrivals],
        tenants=[item.tenant for item in arrivals],
        priorities=[item.priority for item in arrivals],
    )
    setup = Setup(_pool(variant), POLICIES["envoy:pick"], (ENGINE,) * REPLICAS, proxies=1, delay=0.2)
    return replay(setup, trace, seed)


def _add(figures: Figures, result: Replay, others: frozenset[str], seconds: float) -> None:
    """Add the figures of one run."""
    trace, columns, queue = result.trace, result.requests, result.queue
    last_priority = max(trace.priorities)
    counted = [request for request, at in enumerate(trace.times) if at >= _WARM_UP]
    done = {request for request in counted if columns.state[request] == DONE}
    lowest = [request for request in counted if trace.priorities[request] == last_priority]
    figures.tokens += sum(_tokens(result, request, seconds) for request in range(len(trace.times)))
    figures.requests += len(counted)
    figures.first += [
        float(columns.first[request]) - trace.times[request] if request in done else result.setup.patience
        for request in counted
        if trace.tenants[request] in others
    ]
    figures.lowest += [request in done for request in lowest]
    if queue is not None:
        figures.lowest_wait = max([figures.lowest_wait, *(queue.waits.get(request, 0.0) for request in lowest)])
        figures.rejected += sum(trace.times[request] >= _WARM_UP for request in queue.rejected)
        idle = idle_seconds(result, queue)
        figures.idle = None if idle is None else max(figures.idle or 0.0, idle)


def _tokens(result: Replay, request: int, seconds: float) -> float:
    """Return the tokens of a request that were generated from the end of the warm-up to the end of the load."""
    first, last = float(result.requests.first[request]), float(result.requests.last[request])
    if first < 0.0 or last <= first:
        return 0.0
    return result.trace.answers[request] * max(0.0, min(last, seconds) - max(first, _WARM_UP)) / (last - first)


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(load: Load, seeds: int, seconds: float) -> Iterator[str]:
    """Yield a row for each variant."""
    figures = {variant: Figures() for variant in VARIANTS}
    alone, first = Figures(), Figures()
    for seed in range(seeds):
        arrivals = load.arrivals(seconds, seed)
        for variant, each in figures.items():
            _add(each, _run(variant, arrivals, seed), load.others, seconds)
        if load.others:
            quiet = [item for item in arrivals if item.tenant in load.others]
            _add(alone, _run("no queue", quiet, seed), load.others, seconds)
            preferred = [replace(item, priority=HIGH) if item.tenant in load.others else item for item in arrivals]
            _add(first, _run("limit", preferred, seed), load.others, seconds)
    for variant, each in figures.items():
        yield _row(load.name, variant, each, (alone, first), figures["no queue"])


def _row(name: str, variant: str, figures: Figures, compared: tuple[Figures, Figures], plain: Figures) -> str:
    """Return a row. `compared`: the runs in which the others are alone, and go first."""
    p99, alone, first = (percentile_of(item.first, 99) for item in (figures, *compared))
    latency = f"{'-':>7} {'-':>7} {'-':>15} {'-':>7}"
    if figures.first:
        latency = f"{p99:7.2f} {alone:7.2f} {ratio_cell(p99 / alone)} {first:7.2f}"
    answered = sum(figures.lowest) / len(figures.lowest)
    rejected = figures.rejected / figures.requests
    if figures is plain:
        tokens, idle, wait = f"{'-':>15}", f"{'-':>17}", f"{'-':>8}"
    else:
        tokens, idle = tokens_cell(figures.tokens / plain.tokens), idle_cell(figures.idle)
        wait = f"{figures.lowest_wait:6.1f} s"
    return f"{name:<22} {variant:<9} {latency} {tokens} {idle} {wait} {answered:9.1%} {rejected:9.1%}"


def ratio_cell(value: float) -> str:
    """Return the ratio of latencies with its goal."""
    return f"{f'{value:.2f} (<= {MAX_RATIO})':>15}"


def tokens_cell(value: float) -> str:
    """Return the ratio of tokens with its goal."""
    return f"{f'{value:.3f} (>= {MIN_TOKENS})':>15}"


def idle_cell(seconds: float | None) -> str:
    """Return the idle time with its goal."""
    return f"{'-':>17}" if seconds is None else f"{f'{1000 * seconds:.1f} ms (<= {1000 * MAX_IDLE:.0f})':>17}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.picking.queue")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("-k", metavar="WORD", default="")
    options = parser.parse_args()
    print(_HEAD)
    for load in LOADS:
        for row in measure(load, options.seeds, options.seconds) if options.k in load.name else ():
            print(row, flush=True)


if __name__ == "__main__":
    main()

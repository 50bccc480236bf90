"""One run: systems side by side, each with its own set of equal replicas, with the same requests."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from lbctl.base.percentiles import percentile_of
from lbctl.demo.load import lateness
from lbctl.simulate.engine import saturated_rate
from tests.benchmarks.peers.cases import ANSWER, PROMPT, Case
from tests.benchmarks.peers.client import Clients, Planned, Sent
from tests.benchmarks.peers.engines import CURVE
from tests.benchmarks.peers.processes import seconds as cpu_seconds
from tests.benchmarks.peers.replicas import Engines, engines
from tests.benchmarks.peers.systems import KEY, Started, System

FAILED = 30.0
"""Seconds that count for an answer or a first token that did not come."""
_Counts = Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Result:
    """Results of one system in one run.

    Times are in seconds, fractions from 0 to 1, processor times in ms per request.
    """

    first_p50: float
    first_p99: float
    whole_p50: float
    whole_p99: float
    share_error: float
    failed: float
    hits: float
    """Fraction of prompt tokens that were in a cache."""
    data_path: float
    control: float
    reasons: Mapping[str, int]
    load: float
    """Load average of the machine at the end of the run, over a minute."""
    late: float
    """Delay of the clients in seconds, 99th percentile."""
    clients: float
    """Fraction of a core that the clients of all systems used."""
    engines: float
    """Fraction of a core that the engines used."""


def run(case: Case, systems: Sequence[System], planned: Sequence[Planned], seconds: float) -> dict[str, Result]:
    """Return the results of the systems that started."""
    with engines(len(systems), case.speeds) as replicas, ExitStack() as stack:
        begun: dict[int, Started] = {}
        for place, system in enumerate(systems):
            try:
                begun[place] = stack.enter_context(system.start(replicas.groups[place]))
            except (RuntimeError, AssertionError, OSError) as error:
                print(f"    {system.name} does not start: {error}", file=sys.stderr, flush=True)
        return asyncio.run(_measured(case, systems, begun, replicas, planned, seconds))


async def _measured(
    case: Case,
    systems: Sequence[System],
    begun: Mapping[int, Started],
    replicas: Engines,
    planned: Sequence[Planned],
    seconds: float,
) -> dict[str, Result]:
    clients = {place: Clients(started.port, KEY) for place, started in begun.items()}
    used = {place: _used(started) for place, started in begun.items()}
    loop, counts = asyncio.get_running_loop(), [replicas.counts()]
    harness = time.process_time(), cpu_seconds([replicas.process.pid])
    began = time.monotonic() + 0.5
    for event in case.events:
        loop.call_at(began + event.at * seconds, replicas.do, event.command, event.replica, *event.arguments)
    loop.call_at(began + case.since * seconds, lambda: counts.append(replicas.counts()))
    async with asyncio.TaskGroup() as group:
        late = group.create_task(lateness(seconds))
        for each in clients.values():
            group.create_task(each.run(planned, began))
    counts.append(replicas.counts())
    ran = time.monotonic() - began
    machine = (
        os.getloadavg()[0],
        late.result(),
        (time.process_time() - harness[0]) / ran,
        (cpu_seconds([replicas.process.pid]) - harness[1]) / ran,
    )
    results = {}
    for place, started in begun.items():
        sent = [item for item in clients[place].sent if item.at >= case.since * seconds]
        spent = [(now - then) / len(planned) * 1e3 for now, then in zip(_used(started), used[place], strict=True)]
        deltas = [_difference(counts[-1][place], early[place]) for early in counts[:2]]
        results[systems[place].name] = _result(case, sent, deltas[1], deltas[0], spent, machine)
    return results


def _used(started: Started) -> tuple[float, float]:
    """Return the processor seconds of the data path, and of the control plane without the picker."""
    return cpu_seconds(started.data_path), cpu_seconds(started.control, started.data_path)


def _difference(now: _Counts, then: _Counts) -> list[list[int]]:
    return [[a - b for a, b in zip(one, other, strict=True)] for one, other in zip(now, then, strict=True)]


def _result(
    case: Case,
    sent: Sequence[Sent],
    late: Sequence[Sequence[int]],
    whole: Sequence[Sequence[int]],
    spent: Sequence[float],
    machine: tuple[float, float, float, float],
) -> Result:
    first = sorted(item.first - item.at if item.first else FAILED for item in sent)
    last = sorted(FAILED if item.failed else item.last - item.at for item in sent)
    reasons = Counter(item.failed for item in sent if item.failed)
    return Result(
        percentile_of(first, 50), percentile_of(first, 99), percentile_of(last, 50), percentile_of(last, 99),
        _share_error(case, [each[0] for each in late]), reasons.total() / max(1, len(sent)),
        sum(each[2] for each in whole) / max(1, sum(each[1] for each in whole)), *spent, dict(reasons),
        *machine,
    )  # fmt: skip


def _share_error(case: Case, requests: Sequence[int]) -> float:
    """Return the fraction of requests that should have gone to another replica, given the capacity of each engine."""
    if case.after is None or not sum(requests):
        return float("nan")
    right = [saturated_rate(speed, PROMPT, ANSWER, CURVE) for speed in case.after]
    return sum(abs(a / sum(requests) - b / sum(right)) for a, b in zip(requests, right, strict=True)) / 2

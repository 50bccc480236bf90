"""One run: systems side by side, each with its own set of equal replicas, with the same requests."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from lbctl.demo.load import lateness
from tests.benchmarks.peers import processes
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.client import Clients, Planned, Sent
from tests.benchmarks.peers.replicas import Counts, Engines, Member, engines
from tests.benchmarks.peers.results import Cost, Harness, Result, Times
from tests.benchmarks.peers.systems import KEY, Started, System
from tests.benchmarks.peers.workloads import SEQUENCES, capacity

SEEDS = 5
FAILED = 30.0
"""Seconds that count for an answer or a first token that did not come."""
_SETTLING = 1.0
"""Seconds between the start of the last system and the first request."""


def run(case: Case, systems: Sequence[System], seed: int) -> tuple[list[Result], list[str]]:
    """Return the results, and the names of systems that did not start."""
    planned, systems = case.plan(seed), in_turn(systems, seed)
    with engines(len(systems), case.replicas, SEQUENCES) as replicas, ExitStack() as stack:
        # Some processes end together with the thread that has started them, so the threads are stopped last.
        pool = stack.enter_context(ThreadPoolExecutor(len(systems)))
        begun = _started(systems, replicas.groups, pool, stack)
        missing = [system.name for place, system in enumerate(systems) if place not in begun]
        time.sleep(_SETTLING)
        return asyncio.run(_Run(case, seed, replicas, planned, begun, pool).results()) if begun else [], missing


def in_turn(systems: Sequence[System], seed: int) -> list[System]:
    """Return the systems in the order of this seed. At each time, the requests are sent to the systems in this order,
    so no system is always the last one."""
    first = seed * len(systems) // SEEDS % len(systems)
    return [*systems[first:], *systems[:first]]


def _started(
    systems: Sequence[System], groups: Sequence[Sequence[Member]], pool: Executor, stack: ExitStack
) -> dict[int, tuple[System, Started]]:
    """Return the running systems by the number of their replicas. Other products start while lbctl's systems start one
    after another."""
    begun: dict[int, tuple[System, Started]] = {}

    def start(place: int) -> None:
        system = systems[place]
        try:
            begun[place] = system, stack.enter_context(system.start(groups[place]))
        except (RuntimeError, AssertionError, OSError) as error:
            print(f"    {system.name} does not start: {error}", file=sys.stderr, flush=True)

    others = [pool.submit(start, place) for place, system in enumerate(systems) if not system.mode]
    for place, system in enumerate(systems):
        if system.mode:
            start(place)
    for each in others:
        each.result()
    return begun


@dataclass(slots=True)
class _Snapshot:
    """Usage and counts until a point in time, in seconds."""

    time: float
    counts: list[list[Counts]]
    used: dict[int, tuple[float, float]]
    busy: float
    clients: float
    engines: float


class _Run:
    def __init__(
        self,
        case: Case,
        seed: int,
        replicas: Engines,
        planned: Sequence[Planned],
        begun: Mapping[int, tuple[System, Started]],
        pool: Executor,
    ) -> None:
        self._pool = pool
        self._case, self._seed, self._replicas, self._planned, self._begun = case, seed, replicas, planned, begun
        self._clients = {place: Clients(started.port, KEY) for place, (_, started) in begun.items()}
        self._counts: list[list[list[Counts]]] = []
        """Counts of the engines when the counted part of the run begins."""
        self._restarts: list[asyncio.Future[None]] = []

    async def results(self) -> list[Result]:
        """Send all requests, and return the results."""
        case, loop = self._case, asyncio.get_running_loop()
        before = self._snapshot()
        began = time.monotonic() + 0.5
        at: Callable[[float], float] = lambda part: loop.time() + 0.5 + part * case.seconds  # noqa: E731
        for event in case.events:
            if event.command == "restart":
                loop.call_at(at(event.at), self._restart)
            else:
                loop.call_at(at(event.at), self._replicas.do, event.command, event.replica, *event.arguments)
        loop.call_at(at(case.since), lambda: self._counts.append(self._replicas.counts()))
        async with asyncio.TaskGroup() as group:
            late = group.create_task(lateness(case.seconds))
            for each in self._clients.values():
                group.create_task(each.run(self._planned, began))
        after = self._snapshot()
        await asyncio.gather(*self._restarts)
        took = after.time - before.time
        harness = Harness(
            round((after.busy - before.busy) / took / (os.cpu_count() or 1), 3),
            round((after.clients - before.clients) / took, 3),
            round((after.engines - before.engines) / took, 3),
            round(late.result() * 1e3, 1),
        )
        return [self._result(place, before, after, harness) for place in sorted(self._begun)]

    def _restart(self) -> None:
        loop = asyncio.get_running_loop()
        for _, started in self._begun.values():
            assert started.restart is not None
            self._restarts.append(loop.run_in_executor(self._pool, started.restart))

    def _snapshot(self) -> _Snapshot:
        used = {place: started.used() for place, (_, started) in self._begun.items()}
        engine_seconds = processes.seconds([self._replicas.process.pid])
        now = time.monotonic()
        return _Snapshot(now, self._replicas.counts(), used, processes.busy(), time.process_time(), engine_seconds)

    def _result(self, place: int, before: _Snapshot, after: _Snapshot, harness: Harness) -> Result:
        case, (system, started) = self._case, self._begun[place]
        sent = [*zip(self._planned, self._clients[place].sent, strict=True)]
        counted = [(item, each) for item, each in sent if case.counts(item)]
        reasons = Counter(each.failed for _, each in counted if each.failed)
        first = [_milliseconds(each, each.first) for _, each in counted]
        whole = [_milliseconds(each, 0.0 if each.failed else each.last) for _, each in counted]
        measured = [(item, each) for item, each in sent if case.is_measured(item)]
        tokens = sum(item.answer for item, each in measured if not each.failed)
        ended = max((each.last for _, each in measured), default=case.seconds)
        all_counts = _difference(after.counts[place], before.counts[place])
        late_counts = _difference(after.counts[place], self._counts[0][place])
        cpu = [
            round((now - then) / len(sent) * 1e3, 3)
            for now, then in zip(after.used[place], before.used[place], strict=True)
        ]
        return Result(
            case=case.name, system=system.name, seed=self._seed, requests=len(counted), failed=reasons.total(),
            reasons=dict(reasons), first=Times.of(first), whole=Times.of(whole),
            tokens_per_s=round(tokens / (ended - case.since * case.seconds), 1),
            cached=round(_cached(all_counts), 4) if case.has_prefixes else None,
            share_error=_share_error(case, [each[0] for each in late_counts]), cpu=Cost(*cpu),
            memory=Cost(*(round(each, 1) for each in started.memory())), harness=harness,
        )  # fmt: skip


def _milliseconds(sent: Sent, until: float) -> float:
    return 1e3 * (until - sent.at if until else FAILED)


def _difference(now: Sequence[Counts], then: Sequence[Counts]) -> list[Counts]:
    return [(a[0] - b[0], a[1] - b[1], a[2] - b[2]) for a, b in zip(now, then, strict=True)]


def _cached(counts: Sequence[Counts]) -> float:
    return sum(each[2] for each in counts) / max(1, sum(each[1] for each in counts))


def _share_error(case: Case, requests: Sequence[int]) -> float | None:
    """Return the fraction of requests that should have gone to another replica, given the capacity of each engine."""
    if case.after is None or not sum(requests):
        return None
    right = [capacity([speed]) for speed in case.after]
    return round(sum(abs(a / sum(requests) - b / sum(right)) for a, b in zip(requests, right, strict=True)) / 2, 4)

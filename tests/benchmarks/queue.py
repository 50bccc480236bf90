"""`python -m tests.benchmarks.queue [--seconds S] [-k PROXY]`: measure the queue with a real Envoy, HAProxy and nginx.

Each proxy runs under `lbctl serve` with the picker, in front of six simulated engines with `SLOTS` sequences each.
Nine tenants use 60 % of the capacity together, and a tenth one sends ten times its share. The proxy runs three times:
only with the nine tenants, with the flood but without a queue, and with the flood and a queue. A row has the same
figures as `python -m tests.benchmarks.picking.queue`, and the longest time to first token of the flood. The times
include the proxy, the picker and this process. `IDLE` includes the time for which a request is on its way to a replica.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lbctl.base.percentiles import percentile_of
from lbctl.demo.load import lateness
from lbctl.demo.replica import ConnectedRequest
from lbctl.simulate.engine import CostModel, Engine, saturated_rate
from lbctl.simulate.load import conversation, poisson
from lbctl.simulate.queue_figures import ReplicaChange, longest_idle
from tests.benchmarks.descriptors import many_connections
from tests.benchmarks.peers import engines, prompts
from tests.benchmarks.peers.client import Clients, Planned
from tests.benchmarks.peers.engines import CURVE, ChatReplica
from tests.benchmarks.peers.systems import KEY, under_serve
from tests.benchmarks.picking.queue import idle_cell, ratio_cell, tokens_cell
from tests.support.fleets import Fleet
from tests.support.processes import background
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.ports import HOST

REPLICAS, SLOTS, SECONDS = 6, 64, 20.0
PROMPT, ANSWER = 600.0, 100.0
"""Mean lengths in tokens."""
ENGINE = CostModel(CURVE.a, CURVE.b, CURVE.c, CURVE.p, sequences=SLOTS)
_OTHERS, _SHARE = 9, 0.6
"""Number of the other tenants, and the part of the capacity that they use together."""
_FLOOD = "flood"
_CLIENT_TIMEOUT = 60.0
_WARM_UP = 0.3
"""Fraction of the run that does not count."""
_HEAD = (
    f"{'PROXY':<9} {'REQUESTS':>8} {'P99':>7} {'ALONE':>7} {'RATIO':>15} {'TOKENS':>15} {'IDLE':>17} {'FLOOD':>8} "
    f"{'FAILED':>6}"
)


class SlotReplica(ChatReplica):
    """A chat replica with few slots, which records the beginning, the first token and the end of each request."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, 1.0)
        self._engine = Engine(1.0, curve=ENGINE)
        self._number = number
        self.changes: list[ReplicaChange] = []

    @property
    def tokens(self) -> float:
        """Number of tokens that it has generated."""
        return self._engine.counters.decode_tokens

    def add(self, connection: engines._Connection, prompt: int, answer: int) -> ConnectedRequest:
        """Queue a request."""
        self.changes.append(ReplicaChange(time.monotonic(), self._number, 1, 1))
        return super().add(connection, prompt, answer)

    def began(self, request: ConnectedRequest) -> None:
        """Record a first token."""
        self.changes.append(ReplicaChange(time.monotonic(), self._number, 0, -1))
        super().began(request)

    def _end(self, now: float) -> None:
        before = self._finished
        super()._end(now)
        self.changes += [ReplicaChange(time.monotonic(), self._number, -1, 0)] * (self._finished - before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run, in seconds. They count from the end of the warm-up."""

    first: list[float]
    """Times to first token of the other tenants."""
    flood: float
    """Longest time to first token of the flood."""
    tokens: float
    """Tokens that were generated during the load."""
    idle: float
    """Longest time for which a replica had a free slot outside the reserve and no unread prompt while a request was not
    at a replica."""
    failed: int
    late: float
    """Delay of this process, 99th percentile."""


def load(seconds: float, *, has_flood: bool) -> list[Planned]:
    """Return the requests of a run. The session of a request is its tenant."""
    rate = REPLICAS * saturated_rate(1.0, PROMPT, ANSWER, ENGINE)
    planned = [item for number in range(_OTHERS) for item in _sent_by(f"t{number}", _SHARE / _OTHERS * rate, seconds)]
    return sorted([*planned, *(_sent_by(_FLOOD, rate, seconds) if has_flood else ())], key=lambda item: item.at)


def _sent_by(tenant: str, rate: float, seconds: float) -> Iterable[Planned]:
    own, trace = random.Random(tenant), poisson(rate, seconds, conversation(PROMPT, ANSWER), f"queue {tenant}")
    for at, prompt, answer in zip(trace.times, trace.prompts, trace.answers, strict=True):
        yield Planned(at, prompts.body(prompt, max(2, answer), (), f"{own.getrandbits(60):x}"), tenant)


def pool_of(replicas: Sequence[SlotReplica], *, has_queue: bool) -> Fleet:
    """Return the pool of a run. The header `x-session-id` contains the tenant."""
    pool: Fleet = {
        "replicas": [{"name": item.name, "address": f"{HOST}:{item.port}"} for item in replicas],
        "health": {"active": {"http": {"path": "/health"}}},
        "balance": {"algorithm": "pick", "pick": {"prefix": "off", "session": ["x-conversation"]}},
        "telemetry": {"sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]},
    }
    if has_queue:
        pool["circuit_breaker"] = {"per_replica": {"max_requests": SLOTS}}
        pool["queue"] = {"max_wait": "60s", "max_requests": 10_000, "by": {"header": "x-session-id"}}
    return pool


def run(kind: Kind, seconds: float, *, has_flood: bool, has_queue: bool) -> Outcome:
    """Run a proxy once."""
    replicas = [SlotReplica(f"r{number}", number) for number in range(REPLICAS)]
    background.wait(_all(item.start() for item in replicas))
    try:
        with under_serve(kind, pool_of(replicas, has_queue=has_queue), "pick") as started:
            planned = load(seconds, has_flood=has_flood)
            return background.start(_measured(replicas, started.port, planned, seconds)).result(
                seconds + 3 * _CLIENT_TIMEOUT
            )
    finally:
        background.wait(_all(item.close() for item in replicas))


async def _all(work: Iterable) -> None:  # type: ignore[type-arg]
    await asyncio.gather(*work)


async def _measured(replicas: Sequence[SlotReplica], port: int, planned: Sequence[Planned], seconds: float) -> Outcome:
    clients, began, tokens = Clients(port, KEY, _CLIENT_TIMEOUT), time.monotonic() + 0.5, list[float]()
    for at in (_WARM_UP * seconds, seconds):
        asyncio.get_running_loop().call_at(began + at, lambda: tokens.append(sum(item.tokens for item in replicas)))
    async with asyncio.TaskGroup() as group:
        late = group.create_task(lateness(seconds))
        group.create_task(clients.run(planned, began))
    times = {
        is_flood: [
            item.first - item.at if item.first else _CLIENT_TIMEOUT
            for item, plan in zip(clients.sent, planned, strict=True)
            if (plan.session == _FLOOD) is is_flood and item.at >= _WARM_UP * seconds
        ]
        for is_flood in (False, True)
    }
    failed = sum(bool(item.failed) for item in clients.sent)
    idle = _idle(replicas, [began + item.at for item in clients.sent], began + _WARM_UP * seconds, began + seconds)
    return Outcome(times[False], max(times[True], default=0.0), tokens[1] - tokens[0], idle, failed, late.result())


def _idle(replicas: Sequence[SlotReplica], sent: Iterable[float], since: float, until: float) -> float:
    """Return the longest idle time of a slot. A request waits from its time in `sent` until it is at a replica."""

    changes = [change._replace(at=max(change.at, since)) for item in replicas for change in item.changes]
    changes = [change for change in changes if change.at < until]
    waiting = [(max(at, since), 1) for at in sent if at < until]
    waiting += [(change.at, -1) for change in changes if change.requests > 0]
    return longest_idle(waiting, changes, len(replicas), SLOTS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.queue")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("-k", metavar="PROXY", default="")
    options = parser.parse_args()
    many_connections(20_000)
    print(_HEAD)
    for kind in (kind for kind in KINDS if options.k in kind):
        alone = run(kind, options.seconds, has_flood=False, has_queue=True)
        plain = run(kind, options.seconds, has_flood=True, has_queue=False)
        queued = run(kind, options.seconds, has_flood=True, has_queue=True)
        own = percentile_of(alone.first, 99)
        for outcome in (plain, queued):
            p99 = percentile_of(outcome.first, 99)
            is_queued = outcome is queued
            tokens = tokens_cell(outcome.tokens / plain.tokens) if is_queued else f"{'-':>15}"
            idle = idle_cell(outcome.idle) if is_queued else f"{'-':>17}"
            print(
                f"{kind:<9} {len(outcome.first):8} {p99:7.3f} {own:7.3f} {ratio_cell(p99 / own)} {tokens} {idle} "
                f"{outcome.flood:6.1f} s {outcome.failed:6} {'with' if is_queued else 'without'} a queue",
                flush=True,
            )
            print(f"  clients {1000 * outcome.late:.0f} ms late (p99)", file=sys.stderr)


if __name__ == "__main__":
    main()

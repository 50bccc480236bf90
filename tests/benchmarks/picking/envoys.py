"""`python -m tests.benchmarks.picking.envoys [--envoys 1,4] [--seconds S] [-k WORD]`: measure the picker with real
Envoys.

One group of cases has Azure's conversations on GPUs with speeds of 5 : 2 : 1: healthy, one throttled to half its speed,
and one wedged. They compare the weights of the files, adaptive weights and the picker, with several Envoys that share
the requests. The other case has the beginning of Mooncake's trace on four equal replicas, and includes the cache-aware
routers.

Systems of a case run side by side, each with a set of simulated engines with a prefix cache that run in real time. A
row has the time to the first token in seconds, requests that failed without one, and the share of prompt tokens that
were in a cache. docs/develop/picking-study.md has the figures of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile

from lbctl.demo.load import lateness
from tests.benchmarks.descriptors import many_connections
from tests.benchmarks.peers import cases, prompts, systems
from tests.benchmarks.peers.client import Clients, Planned
from tests.benchmarks.peers.engines import SCALE
from tests.benchmarks.peers.replicas import Engines, Member, engines
from tests.benchmarks.picking import traces
from tests.benchmarks.picking.traces import Arrival
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.picker import await_picker, picker_section

_MIXED, _EQUAL = (1.0, 1.0, 0.4, 0.4, 0.2, 0.2), (1.0,) * 4
_ANSWER_TIMEOUT = 30.0
"""Seconds without data after which a client gives up."""
_FAULT = 0.2
"""Fraction of the run after which the first replica has its fault."""
_ROUTERS = (
    "envoy, least_request", "envoy, bounded hash", "smg, cache_aware", "vllm-router, cache_aware",
)  # fmt: skip
_Start = Callable[[Sequence[Member]], AbstractContextManager[list[int]]]
"""Starts a system with these replicas, and returns the ports that the clients use in turn."""


@dataclass(frozen=True, slots=True)
class Case:
    """Requests for replicas with these speeds. `since`: fraction of the run after which they count."""

    name: str
    speeds: tuple[float, ...]
    arrivals: Callable[[float, int], list[Arrival]]
    fault: tuple[str, float] | None = None
    since: float = 0.1


def azure(load: float) -> Callable[[float, int], list[Arrival]]:
    """Return Azure's lengths and bursts, at this load of all replicas."""
    return lambda seconds, seed: traces.azure(load, SCALE * sum(_MIXED), seconds, seed)


def mooncake(seconds: float, _: int) -> list[Arrival]:
    """Return the beginning of Mooncake's trace."""
    return list(takewhile(lambda item: item.at < seconds, traces.mooncake(1.0)))


AZURE = (
    Case("healthy", _MIXED, azure(0.6)),
    Case("one halved", _MIXED, azure(0.55), ("throttle", 0.5), since=0.5),
    Case("one wedged", _MIXED, azure(0.45), ("wedge", 1), since=_FAULT),
)
MOONCAKE = Case("Mooncake", _EQUAL, mooncake, since=0.0)


def lbctl(way: str, count: int) -> _Start:
    """Return a function that starts this number of Envoys, by `lbctl render` (`static`) or `lbctl serve` (`adaptive`,
    `pick`)."""

    @contextmanager
    def start(members: Sequence[Member]) -> Iterator[list[int]]:
        pool, nodes = systems.lbctl_pool(members, way), [f"envoy-{number}" for number in range(count)]
        if "telemetry" in pool:
            pool["telemetry"]["interval"] = "1s"
        with ExitStack() as stack:
            if way == "static":
                yield [stack.enter_context(running("envoy", fleet_of(pool))).port for _ in nodes]
                return
            control = stack.enter_context(controlling(fleet_of(pool, **driven(*nodes), **picker_section())))
            envoys = [stack.enter_context(control.envoy(node, [node], by_socket=True)) for node in nodes]
            for envoy in envoys if way == "pick" else ():
                await_picker(envoy)
            yield [envoy.client().port for envoy in envoys]

    return start


def other(name: str) -> _Start:
    """Return the start function of a system of `tests.benchmarks.peers`."""
    system = next(each for each in systems.of(cases.AGENTS) if each.name == name)

    @contextmanager
    def start(members: Sequence[Member]) -> Iterator[list[int]]:
        with system.start(members) as started:
            yield [started.port]

    return start


def measure(case: Case, compared: dict[str, _Start], seconds: float, seed: int) -> None:
    """Run the systems side by side, and print a row for each."""
    own = random.Random(seed)
    plan = [
        Planned(
            item.at,
            prompts.body(item.prompt, max(2, item.answer), item.blocks, f"{own.getrandbits(60):x}"),
            item.session or str(item.blocks[:2] or own.getrandbits(60)),
        )
        for item in case.arrivals(seconds, seed)
    ]
    with engines(len(compared), case.speeds) as replicas, ExitStack() as stack:
        ports = [
            stack.enter_context(start(members))
            for start, members in zip(compared.values(), replicas.groups, strict=True)
        ]
        asyncio.run(_run(case, list(compared), ports, replicas, plan, seconds))


async def _run(
    case: Case, names: Sequence[str], ports: Sequence[list[int]], replicas: Engines, plan: list[Planned], seconds: float
) -> None:
    began = time.monotonic() + 0.5
    clients = [[Clients(port, systems.KEY, _ANSWER_TIMEOUT) for port in group] for group in ports]
    if case.fault is not None:
        command, argument = case.fault
        asyncio.get_running_loop().call_at(began + _FAULT * seconds, replicas.do, command, 0, argument)
    async with asyncio.TaskGroup() as group:
        late = group.create_task(lateness(seconds))
        for each in clients:
            for number, client in enumerate(each):
                group.create_task(client.run(plan[number :: len(each)], began))
    for name, each, counts in zip(names, clients, replicas.counts(), strict=True):
        sent = [item for client in each for item in client.sent if item.at >= case.since * seconds]
        first = sorted(item.first - item.at if item.first else _ANSWER_TIMEOUT for item in sent)
        hits = sum(item[2] for item in counts) / max(1, sum(item[1] for item in counts))
        print(
            f"{case.name:<12} {name:<30} {len(sent):5} requests  p50 {first[len(first) // 2]:6.2f}  "
            f"p99 {first[len(first) * 99 // 100]:6.2f} s  {sum(not item.first for item in sent):3} failed  "
            f"hits {hits:.3f}  clients {late.result() * 1e3:.0f} ms late",
            flush=True,
        )


def ideal(arrivals: Sequence[Arrival]) -> float:
    """Return the fraction of prompt tokens that one unbounded cache would contain."""
    seen: set[int] = set()
    hits = 0
    for item in arrivals:
        blocks = item.blocks[: item.prompt // prompts.BLOCK]
        hits += sum(1 for _ in takewhile(seen.__contains__, blocks)) * prompts.BLOCK
        seen.update(blocks)
    return hits / sum(item.prompt for item in arrivals)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.picking.envoys")
    parser.add_argument("--envoys", default="1,4")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("-k", metavar="WORD", default="")
    options = parser.parse_args()
    many_connections(20_000)
    for seed in range(options.seeds):
        for case in (case for case in AZURE if options.k in case.name):
            for count in map(int, options.envoys.split(",")):
                ways = ("static", "adaptive", "pick")
                measure(case, {f"{way}, {count} Envoys": lbctl(way, count) for way in ways}, options.seconds, seed)
    if options.k in MOONCAKE.name:
        print(f"Mooncake: one cache without bounds has {ideal(mooncake(options.seconds, 0)):.3f} of the tokens")
        compared = {name: other(name) for name in _ROUTERS}
        measure(MOONCAKE, {**compared, "lbctl pick, Envoy": lbctl("pick", 1)}, options.seconds, 0)


if __name__ == "__main__":
    main()

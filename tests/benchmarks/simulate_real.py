"""`python -m tests.benchmarks.simulate_real [--seeds N …] [--seconds S]`: compare simulations with real proxies.

Six engines in real time (`PacedReplica`: two GPUs each of speeds 5 : 2 : 1, `SCALE` times as fast as the profile) run
behind each algorithm of each real proxy. All of them run side by side with the same arrivals, and `lbctl.simulate`
replays these with the same pool and costs.

The table has the medians of both over the seeds, and the median difference of the real from the simulated figure in
percent. A simulated figure is the median of `DRAWS` runs with different random numbers and positions on the ring.
Hashes use the prompt length, which is in the query string. A seed is left out, with a message, if the event loop or the
requests were late.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbctl.base.diagnostics import Diagnostics
from lbctl.demo.load import Arrival, LoadGenerator, Outcomes, lateness, poisson
from lbctl.demo.replica import PacedReplica
from lbctl.ir.pools import Pool
from lbctl.simulate.engine import CostModel, cache_tokens, saturated_rate
from lbctl.simulate.load import conversation
from lbctl.simulate.policies import POLICIES
from lbctl.simulate.replay import replay
from lbctl.simulate.results import Summary, summarise
from lbctl.simulate.setup import Setup
from lbctl.simulate.trace import Trace
from lbctl.targets.load import load as load_fleet
from tests.benchmarks.descriptors import many_connections
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes import background
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import bind, running
from tests.support.processes.ports import HOST

LOAD, SECONDS, PROMPT, ANSWER, DRAWS, SCALE = 0.65, 60.0, 1155.0, 211.0, 5, 2.0
LATE = 0.03
"""A run is discarded if the event loop or the requests were later than this (seconds, 99th percentile)."""
NEAR = 15.0
"""Percent. Larger differences are bold."""
REST = 60.0
"""Seconds in which the last answers may end."""
CURVE = CostModel(29.8e-3 / SCALE, 0.202e-3 / SCALE, 1.78e-7 / SCALE, 0.0715e-3 / SCALE)
SPEEDS = {"a1": 1.0, "a2": 1.0, "b1": 0.4, "b2": 0.4, "c1": 0.2, "c2": 0.2}
_HASH = {"algorithm": "hash", "hash": {"key": {"query": "q"}}}
_BOUNDED = {"algorithm": "hash", "hash": {"key": {"query": "q"}, "bounded_load": 1.25}}
_EVERYWHERE: dict[str, dict[str, Any]] = {
    "round_robin": {"algorithm": "round_robin"},
    "least_request": {"algorithm": "least_request"},
    "random": {"algorithm": "random"},
    "hash": _HASH,
}
BALANCES: Mapping[Kind, Mapping[str, dict[str, Any]]] = {
    "nginx": _EVERYWHERE,
    "haproxy": {**_EVERYWHERE, "hash-bounded": _BOUNDED},
    "envoy": {**_EVERYWHERE, "hash-bounded": _BOUNDED},
}
FIGURES = ("first token p50", "first token p99", "whole p50", "whole p99")
_Site = tuple[Kind, str]
_Figures = tuple[float, float, float, float]
SITES: tuple[_Site, ...] = tuple((kind, name) for kind, each in BALANCES.items() for name in each)


# ── Real ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def measured(arrivals: Sequence[Arrival], seconds: float) -> tuple[dict[_Site, Outcomes], dict[_Site, Pool], float]:
    """Send the arrivals to every site. Return the outcomes, the pools, and the delay of this process in seconds."""
    engines = {site: [PacedReplica(name, speed, CURVE) for name, speed in SPEEDS.items()] for site in SITES}
    background.wait(_all(engine.start() for members in engines.values() for engine in members))
    fleets = {kind: _fleet(kind, engines) for kind in BALANCES}
    pools = {site: pool for kind, fleet in fleets.items() for site, pool in _pools(kind, fleet).items()}
    with ExitStack() as stack:
        ports = {kind: stack.enter_context(running(kind, fleet)).port for kind, fleet in fleets.items()}
        loads = {(kind, name): LoadGenerator([ports[kind]], f"/{name}/x") for kind, name in SITES}
        outcomes, late = background.start(_loaded(loads, arrivals, seconds)).result(seconds + 3 * REST)
    background.wait(_all(engine.close() for members in engines.values() for engine in members))
    return outcomes, pools, late


async def _all(work: Any) -> None:
    await asyncio.gather(*work)


async def _loaded(
    loads: Mapping[_Site, LoadGenerator], arrivals: Sequence[Arrival], seconds: float
) -> tuple[dict[_Site, Outcomes], float]:
    spent, began = time.process_time(), time.monotonic() + 0.5
    async with asyncio.TaskGroup() as group:
        late = group.create_task(lateness(seconds))
        for load in loads.values():
            group.create_task(load.run(arrivals, began))
    busy = (time.process_time() - spent) / (time.monotonic() - began)
    late_by = max(late.result(), *(_sent_late(load, arrivals, began) for load in loads.values()))
    print(f"  {busy:.0%} of a core here; late by {late_by * 1000:.1f} ms (p99)", file=sys.stderr)
    end = time.monotonic() + REST
    while time.monotonic() < end and not all(sent.last or sent.failed for load in loads.values() for sent in load.sent):
        await asyncio.sleep(0.2)
    outcomes = {site: load.outcomes(began - 1, began + seconds + 1) for site, load in loads.items()}
    for load in loads.values():
        await load.close()
    return outcomes, late_by


def _sent_late(load: LoadGenerator, arrivals: Sequence[Arrival], began: float) -> float:
    """Return by how much 99 % of the requests were late. A long stall delays many requests but only few timers."""
    late = sorted(sent.at - began - item.at for sent, item in zip(load.sent, arrivals, strict=True))
    return late[len(late) * 99 // 100]


def _fleet(kind: Kind, engines: Mapping[_Site, Sequence[PacedReplica]]) -> Fleet:
    names = BALANCES[kind]
    return {
        "version": 1,
        "listeners": {"gateway": {"bind": bind()}},
        "routes": {name: {"match": {"path_prefix": f"/{name}/"}, "pool": name} for name in names},
        "pools": {name: {"replicas": _replicas(engines[kind, name]), "balance": names[name]} for name in names},
    }


def _replicas(engines: Sequence[PacedReplica]) -> list[dict[str, Any]]:
    weights = [round(5 * speed) for speed in SPEEDS.values()]
    return [
        {"name": engine.name, "address": f"{HOST}:{engine.port}", "weight": weight}
        for engine, weight in zip(engines, weights, strict=True)
    ]


def _pools(kind: Kind, fleet: Fleet) -> dict[_Site, Pool]:
    """Return the pools of the fleet as the simulation needs them."""
    with tempfile.TemporaryDirectory() as name:
        loaded = load_fleet([str(write_fleet(Path(name), fleet))], Diagnostics())
    if loaded is None:
        raise RuntimeError(f"the fleet for {kind} has errors")
    return {(kind, pool.name): pool for pool in loaded.compiled.topology.pools}


def real_figures(outcomes: Outcomes) -> _Figures:
    """Return the figures of the table, in seconds."""
    return outcomes.first_token(50), outcomes.first_token(99), outcomes.whole(50), outcomes.whole(99)


# ── Simulated ────────────────────────────────────────────────────────────────────────────────────────────────────────


def simulated(site: _Site, pool: Pool, arrivals: Sequence[Arrival]) -> _Figures:
    """Return the median of each figure over runs with different random numbers, in seconds."""
    trace = Trace(
        [item.at for item in arrivals],
        [item.prompt for item in arrivals],
        [item.answer for item in arrivals],
        [zlib.crc32(str(item.prompt).encode()) for item in arrivals],
    )
    policy = POLICIES[f"{site[0]}:{site[1].partition('-')[0]}"]
    costs = tuple(_cost(speed) for speed in SPEEDS.values())
    draws = [_figures(Setup(_renamed(pool, draw), policy, costs, proxies=1), trace, draw) for draw in range(DRAWS)]
    first, late_first, whole, late_whole = (statistics.median(each) for each in zip(*draws, strict=True))
    print(f"  {site}: simulated {_spread(draws)}", file=sys.stderr, flush=True)
    return first, late_first, whole, late_whole


def _spread(draws: Sequence[_Figures]) -> str:
    return ", ".join(f"{min(each):.3f}-{max(each):.3f}" for each in zip(*draws, strict=True))


def _renamed(pool: Pool, draw: int) -> Pool:
    """Return the pool with other replica names, and therefore other positions on the ring, like the random ports of
    real runs."""
    return replace(pool, replicas=tuple(replace(item, name=f"{item.name}-{draw}") for item in pool.replicas))


def _cost(speed: float) -> CostModel:
    each = (value / speed for value in (CURVE.a, CURVE.b, CURVE.c, CURVE.p))
    return CostModel(*each, CURVE.sequences, int(cache_tokens(speed, CURVE)))


def _figures(setup: Setup, trace: Trace, seed: int) -> _Figures:
    summary: Summary = summarise(replay(setup, trace, seed))
    return summary.ttft.p50, summary.ttft.p99, summary.total.p50, summary.total.p99


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────

_Pair = tuple[_Figures, _Figures]
"""Real and simulated figures."""


def lines(pairs: Mapping[_Site, Sequence[_Pair]]) -> Iterator[str]:
    """Yield the rows: seconds as `real / simulated (difference)`, bold if the difference is large."""
    yield f"| proxy | algorithm | {' | '.join(FIGURES)} |"
    yield "|---" * (len(FIGURES) + 2) + "|"
    for (kind, name), each in pairs.items():
        yield f"| {kind} | {name.replace('-', ', ')} | {' | '.join(_cell(each, at) for at in range(len(FIGURES)))} |"


def difference(each: Sequence[_Pair], at: int) -> float:
    """Return the median over the seeds of the difference of the real figure from the simulated one, in percent."""
    return statistics.median(100 * (real[at] / simulation[at] - 1) for real, simulation in each)


def _cell(each: Sequence[_Pair], at: int) -> str:
    real, simulation = (statistics.median(pair[side][at] for pair in each) for side in range(2))
    percent = difference(each, at)
    text = f"{real:.2f} / {simulation:.2f} ({percent:+.0f} %)"
    return text if abs(percent) <= NEAR else f"**{text}**"


def arrivals_of(seed: int, seconds: float) -> list[Arrival]:
    """Return Poisson arrivals with the lengths of Azure's conversations, at the load `LOAD`."""
    rate = LOAD * sum(saturated_rate(speed, PROMPT, ANSWER, CURVE) for speed in SPEEDS.values())
    return poisson(rate, seconds, conversation(PROMPT, ANSWER), f"simulate_real {seed}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.simulate_real")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    many_connections(20_000)
    pairs: dict[_Site, list[_Pair]] = {site: [] for site in SITES}
    disturbed, failed = [], 0
    for seed in options.seeds:
        arrivals = arrivals_of(seed, options.seconds)
        print(f"seed {seed}: {len(arrivals)} requests to each of {len(SITES)} sites", file=sys.stderr)
        outcomes, pools, late = measured(arrivals, options.seconds)
        real = {site: real_figures(each) for site, each in outcomes.items()}
        for site, figures in real.items():
            print(f"  {site}: real {', '.join(f'{each:.3f}' for each in figures)}", file=sys.stderr, flush=True)
        if late > LATE:
            disturbed.append(f"{seed} ({late * 1000:.0f} ms)")
            continue
        failed += sum(each.failed for each in outcomes.values())
        for site in SITES:
            pairs[site].append((real[site], simulated(site, pools[site], arrivals)))
    if disturbed:
        print(f"left out, since the event loop was late: seed {', '.join(disturbed)}")
    if not pairs[SITES[0]]:
        return 1
    print("\n".join(lines(pairs)))
    near = [abs(difference(each, at)) <= NEAR for each in pairs.values() for at in range(len(FIGURES))]
    print(f"\n{sum(near)} of {len(near)} within {NEAR:.0f} %; seeds: {len(pairs[SITES[0]])}; failed requests: {failed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

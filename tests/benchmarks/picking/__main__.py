"""`python -m tests.benchmarks.picking [--seeds N] [--svg DIR] [-k WORD]`: compare picking policies on simulated fleets.

A row has the figures of a policy in a scenario, over the seeds:
- the median and the 99th percentile of the time to the first token, in seconds,
- the same of the time to the last token,
- the mean time of each further token, in milliseconds,
- the share of prompt tokens that were in a cache,
- these tokens divided by the tokens that the picker expected in caches,
- sessions that changed their replica,
- changes of weights by the control loop,
- requests without a first token within a minute.

docs/develop/picking-study.md has the figures of a run. `python -m tests.benchmarks.picking.speed` measures the speed of
a decision.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lbctl.base.percentiles import percentile_of
from lbctl.simulate.engine import CostModel, Engine, SpeedFault
from lbctl.simulate.scenario import SimulatedReplica, heterogeneous, homogeneous
from tests.benchmarks.peers import cases, workloads
from tests.benchmarks.peers.engines import CURVE, SCALE
from tests.benchmarks.picking import traces
from tests.benchmarks.picking.plot import bars
from tests.benchmarks.picking.policies import (
    AllKnowing,
    CacheAware,
    Exact,
    FirstBytes,
    Hashed,
    Informed,
    Picker,
    Policy,
    Weights,
)
from tests.benchmarks.picking.simulator import Absence, Fleet, Outcome, run
from tests.benchmarks.picking.traces import Arrival

Make = Callable[[int, Sequence[Engine]], Policy]
_SECONDS = 300.0
_A100 = CostModel(a=44.2e-3, b=0.2e-3, c=3.1e-7, p=0.154e-3)
"""The cost of an iteration of Llama-2-70B on 8 A100 (Splitwise's profile)."""
_HEAD = (
    f"{'SCENARIO':<32} {'POLICY':<34} {'P50':>7} {'P99':>7} {'ALL50':>6} {'ALL99':>6} {'TOKEN':>6} {'HITS':>6} "
    f"{'FOUND':>6} {'MOVED':>6} {'CHANGES':>7} {'FAILED':>6}"
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet, its requests for each seed, and the policies to compare."""

    name: str
    members: tuple[SimulatedReplica, ...]
    arrivals: Callable[[int], list[Arrival]]
    policies: tuple[str, ...]
    proxies: int = 2
    cache: float = 0.7
    """Size of a replica's prefix cache, relative to 400,000 tokens at a speed of 1."""
    interval: float = 1.0
    """Seconds between scrapes of a replica."""
    spread: bool = False
    """Whether the replicas are scraped at different times, instead of all at once."""
    restarts: float | None = None
    """Seconds between two restarts of `serve`; None for no restarts."""
    absences: tuple[Absence, ...] = ()
    """The times in which replicas are away."""
    warm_up: float = 30.0
    """Seconds without a measurement."""
    corrected: tuple[float, ...] = ()
    """The capacities after corrections by the weights law; empty if no corrections are needed."""


@dataclass(slots=True)
class _Sum:
    outcomes: list[Outcome] = field(default_factory=list)

    def mean(self, value: Callable[[Outcome], float]) -> float:
        return sum(map(value, self.outcomes)) / len(self.outcomes)


def scenarios() -> Iterator[Scenario]:
    """Yield every scenario."""
    equal, mixed = homogeneous(8), heterogeneous()
    plain = ("weights, Envoy", "weights, least conn", "pick, requests counted", "pick", "all-knowing")
    yield Scenario("equal, Azure", equal, _azure(equal, 0.8), plain)
    yield Scenario("5:2:1, Azure", mixed, _azure(mixed, 0.8), plain)
    halved = homogeneous(7, SimulatedReplica(faults=(SpeedFault(60, 1e9, 0.5),)))
    both = ("weights, Envoy", "weights, least conn", "pick", "pick, corrected weights", "all-knowing")
    yield Scenario("one halved", halved, _azure(halved, 0.7), both, corrected=(1.0,) * 7 + (0.5,))
    wedged = homogeneous(7, SimulatedReplica(faults=(SpeedFault(100, 160, 0.0),)))
    yield Scenario("one stops for 60 s", wedged, _azure(wedged, 0.6), plain)
    ill = ("weights, Envoy", "adaptive, Envoy", "weights, least conn", "adaptive, least conn")
    for name, changed, load in (
        ("healthy", mixed[0], 0.8),
        ("one halved", replace(mixed[0], faults=(SpeedFault(60, 1e9, 0.5),)), 0.7),
        ("one wedged", replace(mixed[0], faults=(SpeedFault(100, 160, 0.0),)), 0.6),
    ):
        for proxies in (1, 4, 16):
            fleet = (changed, *mixed[1:])
            also = ("pick", "pick, adaptive") if proxies == 1 else ()
            yield Scenario(f"{name}, {proxies} proxies", fleet, _azure(fleet, load), (*ill, *also), proxies)
    yield from _joins()
    yield from _benchmark()
    yield from _capacities()
    for name, members in (("equal", equal), ("5:2:1", mixed)):
        for load in (0.6, 0.8):
            for interval in (0.25, 1.0, 2.5, 5.0):
                also = ("weights, Envoy", "weights, least conn", "pick, exact") if interval == 1.0 else ()
                for spread in (False, True):
                    title = f"{name} {load}, scrape {interval:g}s{', spread' if spread else ''}"
                    policies = ("pick",) if spread else (*also, "pick")
                    yield Scenario(title, members, _azure(members, load), policies, interval=interval, spread=spread)
    yield from _first_bytes()
    affine = (
        "weights, least conn", "hash, bounded", "pick, no memory", "pick, bound 1.05", "pick", "pick, bound 2",
        "pick, bound 1000", "all-knowing",
    )  # fmt: skip
    yield Scenario("sessions", equal, lambda seed: traces.sessions(0.7, 8, _SECONDS, seed), affine)
    speed = sum(item.speed for item in mixed)
    yield Scenario("sessions, 5:2:1", mixed, lambda seed: traces.sessions(0.7, speed, _SECONDS, seed), affine)
    for rate in (1.5, 3.0, 6.0):
        yield Scenario(
            f"common prompt, {rate:g}/s", homogeneous(3), _common_prompt(rate), ("weights, least conn", "pick")
        )
    routers = ("Envoy, least requests", "hash, bounded", "vllm-router", "sglang-router", *affine[2:])
    for name, cache in (("Mooncake", 0.7), ("Mooncake, 1M caches", 2.5)):
        yield Scenario(name, equal, lambda seed: traces.mooncake(1.0 + 0.2 * seed), routers, cache=cache)
    alone = ("weights, least conn", "one picker", "16 pickers alone", "16 pickers, 50 ms", "16 pickers, 500 ms")
    yield Scenario("several, equal", equal, _azure(equal, 0.8), alone)
    yield Scenario("several, 5:2:1", mixed, _azure(mixed, 0.8), alone)
    for name, arrivals in (
        ("sessions", lambda seed: traces.sessions(0.7, 8, _SECONDS, seed)),
        ("Mooncake", lambda seed: traces.mooncake(1.0 + 0.2 * seed)),
    ):
        yield Scenario(f"events, {name}", equal, arrivals, ("pick", "pick, caches known"))
    shared = (*(f"{count} pickers, shared" for count in (1, 2, 4, 8)), "8 pickers, own memories")
    yield Scenario("shared, sessions", equal, lambda seed: traces.sessions(0.7, 8, _SECONDS, seed), shared)
    yield Scenario("shared, Mooncake", equal, lambda seed: traces.mooncake(1.0 + 0.2 * seed), shared)


def _first_bytes() -> Iterator[Scenario]:
    """Yield cases in which first bytes make a difference: a low load, bursts, and a speed that changes.

    The fleet of `tests.benchmarks.picking.envoys` is simulated without the time that proxies and the picker need.
    """
    equal = homogeneous(8)
    policies = ("weights, least conn", "pick", "pick, first bytes", "all-knowing")
    for name, members in (("equal", equal), ("5:2:1", heterogeneous())):
        for load in (0.3, 0.6):
            yield Scenario(f"low load, {name} {load}", members, _azure(members, load), ("weights, Envoy", *policies))
    speeds = (1.0, 1.0, 0.4, 0.4, 0.2, 0.2)
    fleet = tuple(SimulatedReplica(speed, speed, curve=CURVE) for speed in speeds)
    yield Scenario(
        "low load, fleet behind Envoys", fleet, lambda seed: traces.azure(0.6, SCALE * sum(speeds), 100.0, seed),
        ("weights, Envoy", *policies), cache=1.0, warm_up=10.0,
    )  # fmt: skip
    yield Scenario("bursts", equal, _bursts(equal, 0.6), policies)
    slow = homogeneous(7, SimulatedReplica(faults=tuple(SpeedFault(at, at + 20, 0.3) for at in range(40, 300, 40))))
    yield Scenario("slow for 20 s of 40", slow, _azure(slow, 0.6), policies)


def _joins() -> Iterator[Scenario]:
    """Yield replicas of `tests.benchmarks.peers` that restart one after another, or are new.

    A restart takes 10.5 s, and the next one begins 3.5 s later. New replicas have a quarter of their speed for 20 s.
    """
    both = ("weights, least conn", "pick, first bytes")
    for size, load in ((3, 0.4), (4, 0.6)):
        speeds, seconds = (1.2,) * size, 4.0 + 14 * size
        absences = tuple(Absence(place, 5 + 14 * place, 15.5 + 14 * place) for place in range(size))
        arrivals = _unrelated(speeds, load, seconds)
        yield Scenario(
            f"rolling restart of {size}", _peers(speeds), arrivals, both, absences=absences, warm_up=0.1 * seconds
        )
    for old, new, speed in ((3, 1, 1.0), (1, 1, 2.0), (4, 4, 1.0)):
        absences = tuple(Absence(old + place, 0, 20) for place in range(new))
        members = _peers([speed] * old) + _peers([speed] * new, SpeedFault(20, 40, 0.25))
        arrivals = _unrelated([speed] * old, 0.85 if new == 4 else 0.67, 100)
        yield Scenario(f"{new} cold, {old} others", members, arrivals, both, absences=absences, warm_up=20)


def _benchmark() -> Iterator[Scenario]:
    """Yield some cases of `tests.benchmarks.peers`, without the time that proxies and the picker need."""
    policies = ("weights, least conn", "vllm-router", "pick, first bytes", "pick, first bytes, adaptive")
    for case in cases.CASES:
        if case.name in ("mixed-50", "prefixes-50", "prefixes-100", "halved"):
            members = _peers(case.replicas)
            if case.name == "halved":
                slow = SpeedFault(0.2 * case.seconds, 1e9, 0.5)
                members = (replace(members[0], faults=(slow,)), *members[1:])
            yield Scenario(
                f"benchmark, {case.name}", members, case.arrivals, policies, cache=1.0,
                warm_up=case.since * case.seconds,
            )  # fmt: skip


def _peers(speeds: Sequence[float], *faults: SpeedFault) -> tuple[SimulatedReplica, ...]:
    curve = replace(CURVE, sequences=workloads.SEQUENCES)
    return tuple(SimulatedReplica(speed, speed, curve=curve, faults=faults) for speed in speeds)


def _unrelated(speeds: Sequence[float], load: float, seconds: float) -> Callable[[int], list[Arrival]]:
    rate = load * workloads.capacity(speeds)
    return lambda seed: workloads.unrelated(rate, seconds, seed)


def _capacities() -> Iterator[Scenario]:
    """Yield healthy fleets with correct capacities, and one with wrong capacities."""
    a100 = SimulatedReplica(capacity=0.57, gpu="A100-80GB", curve=_A100)
    pairs, mixed = homogeneous(4, *(a100,) * 4), heterogeneous()
    both = ("weights, Envoy", "adaptive, Envoy", "pick", "pick, adaptive")
    yield Scenario("4 H100 and 4 A100", pairs, _azure(pairs, 0.85), both)
    yield Scenario("5:2:1, code", mixed, _azure(mixed, 0.8, "code"), both)
    for name, members, load in (("4 H100 and 4 A100", pairs, 0.85), ("5:2:1", mixed, 0.8)):
        yield Scenario(f"{name}, restarts", members, _azure(members, load), both, restarts=100.0)
    equal = homogeneous(8)
    yield Scenario("Mooncake, adaptive", equal, lambda seed: traces.mooncake(1.0 + 0.2 * seed), both, cache=2.5)
    yield Scenario("5:2:1, small ones configured ×2", heterogeneous(small=0.4), _azure(mixed, 0.8), both)


def outcome(scenario: Scenario, policy: str, seed: int) -> Outcome:
    """Run a policy once."""
    capacities = [item.capacity for item in scenario.members]
    fleet = Fleet(scenario.members, proxies=scenario.proxies if policy.startswith(("weights", "adaptive")) else 1)
    fleet.cache, fleet.interval, fleet.adaptive = scenario.cache, scenario.interval, "adaptive" in policy
    fleet.restarts = scenario.restarts if fleet.adaptive else None
    fleet.absences, fleet.warm_up = scenario.absences, scenario.warm_up
    fleet.spread = scenario.spread or policy.startswith("adaptive")  # only picked pools are scraped all at once
    if policy.startswith("16"):
        fleet.proxies = 16
        fleet.exchange = {"50": 0.05, "500": 0.5}.get(policy.split()[-2])
    if policy.endswith(("shared", "own memories")):
        fleet.proxies, fleet.exchange = int(policy.split()[0]), 0.05
        fleet.share = 0.1 if policy.endswith("shared") else None
    if "corrected" in policy:
        capacities = list(scenario.corrected)
    return run(fleet, scenario.arrivals(seed), _make(policy, capacities))


def _make(policy: str, capacities: Sequence[float]) -> Make:
    def make(index: int, engines: Sequence[Engine]) -> Policy:
        rng = random.Random(100 + index)
        if policy.startswith(("weights", "adaptive", "Envoy")):
            return Weights("envoy_w2" if "Envoy" in policy else "least_conn", capacities, rng)
        if policy.startswith("hash"):
            return Hashed(capacities, 1.25, 16)
        if policy.endswith("router"):
            return CacheAware(len(capacities), *((32, 1.1) if "vllm" in policy else (64, 1.5)), rng)
        if policy == "all-knowing":
            return AllKnowing(engines)
        if policy == "pick, caches known":
            return Informed(engines, str(index), capacities, rng)
        options: dict[str, Any] = {"memory": "no memory" not in policy}
        if "bound" in policy:
            options["bound"] = float(policy.split()[-1])
        kind = Exact if "exact" in policy else FirstBytes if "first bytes" in policy else Picker
        return kind(str(index), capacities, rng, counting="requests" in policy, **options)

    return make


def _azure(
    members: Sequence[SimulatedReplica], load: float, kind: str = "conversation"
) -> Callable[[int], list[Arrival]]:
    speed = sum(item.capacity for item in members)
    return lambda seed: traces.azure(load, speed, _SECONDS, seed, kind)


def _bursts(members: Sequence[SimulatedReplica], load: float) -> Callable[[int], list[Arrival]]:
    """Return requests of which half arrive in the first two seconds of every ten."""

    def arrivals(seed: int) -> list[Arrival]:
        rng = random.Random(seed)
        moved = [
            replace(item, at=item.at - item.at % 10 + rng.uniform(0, 2)) if rng.random() < 0.5 else item
            for item in _azure(members, load)(seed)
        ]
        return sorted(moved, key=lambda item: item.at)

    return arrivals


def _common_prompt(rate: float) -> Callable[[int], list[Arrival]]:
    return lambda seed: traces.common_prompt(2048, rate, _SECONDS, seed)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.picking")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("-k", metavar="WORD", default="")
    options = parser.parse_args()
    print(_HEAD)
    groups: dict[str, dict[str, float]] = {}
    for scenario in scenarios():
        for policy in scenario.policies if options.k in scenario.name else ():
            total = _Sum([outcome(scenario, policy, seed) for seed in range(options.seeds)])
            groups.setdefault(scenario.name, {})[policy] = total.mean(lambda item: item.percentile(99))
            print(_line(scenario, policy, total), flush=True)
    if options.svg:
        _write(options.svg, groups)


def _line(scenario: Scenario, policy: str, total: _Sum) -> str:
    p50, p99 = (total.mean(lambda item, percent=percent: item.percentile(percent)) for percent in (50, 99))  # type: ignore[misc]
    whole50 = total.mean(lambda item: percentile_of(item.whole, 50))
    whole99 = total.mean(lambda item: percentile_of(item.whole, 99))
    token = 1000 * total.mean(lambda item: sum(item.per_token) / len(item.per_token))
    hits, moved = total.mean(lambda item: item.hits), total.mean(lambda item: item.moved)
    changes, failed = total.mean(lambda item: item.changes), total.mean(lambda item: item.failed)
    ratios = [item.found for item in total.outcomes if item.found is not None]
    found = f"{sum(ratios) / len(ratios):6.2f}" if ratios else f"{'-':>6}"
    figures = f"{p50:7.3f} {p99:7.2f} {whole50:6.2f} {whole99:6.2f} {token:6.1f} {hits:6.2f} {found}"
    return f"{scenario.name:<32} {policy:<34} {figures} {moved:6.0f} {changes:7.1f} {failed:6.1f}"


def _write(directory: Path, groups: dict[str, dict[str, float]]) -> None:
    work = {name: values for name, values in groups.items() if name in ("equal, Azure", "5:2:1, Azure", "one halved")}
    cache = {name: values for name, values in groups.items() if name in ("sessions", "Mooncake, 1M caches")}
    for file, title, chosen in (
        ("picking-work.svg", "p99 of the time to the first token, seconds: work in flight", work),
        ("picking-caches.svg", "p99 of the time to the first token, seconds: caches", cache),
    ):
        (directory / file).write_text(bars(title, chosen), encoding="utf-8")


if __name__ == "__main__":
    main()

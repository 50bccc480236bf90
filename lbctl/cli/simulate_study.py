"""What `lbctl simulate` is asked: the pool, the policies, the trace, the engines and what happens to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.topology import Topology
from lbctl.simulate import capacity
from lbctl.simulate.engine import CostModel
from lbctl.simulate.policies import POLICIES, Policy
from lbctl.simulate.replay import replay
from lbctl.simulate.results import Summary, summarise
from lbctl.simulate.setup import Setup, SpeedChange
from lbctl.simulate.trace import Trace


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options of the command line; None: not given."""

    paths: tuple[str, ...]
    """The files of the fleet."""
    trace_file: str
    """The trace."""
    pool: str | None
    """The pool that gets the requests."""
    policy: str | None
    """`proxy:algorithm`, separated by commas."""
    speedup: float
    """The factor on the rate of the trace."""
    requests: int | None
    """The number of requests of the trace that are used."""
    proxies: int
    """The number of proxies that share the load."""
    engine: str | None
    """Costs of the strongest replica, as `key=value`, separated by commas."""
    slow: tuple[str, ...]
    """Speeds of replicas, each as `REPLICA=FACTOR[@SECONDS]`."""
    lose: str | None
    """The replicas that are not there."""
    find: str | None
    """`rate` or `replicas`."""
    slo: str | None
    """The limits of a search."""
    seed: int
    """The seed of everything random."""
    plot_file: str | None
    """Where the picture is written."""
    output: str
    """The form of the result."""


@dataclass(frozen=True, slots=True)
class Study:
    """What is simulated."""

    pool: Pool
    """The pool that gets the requests."""
    policies: tuple[Policy, ...]
    """How the proxies choose, one after the other."""
    trace: Trace
    """The requests."""
    reference: CostModel
    """The engine of the strongest replica."""
    largest: float
    """The capacity of the strongest replica, also where it is lost."""
    speeds: Mapping[str, float]
    """Replica → factor on the speed that its capacity promises."""
    changes: tuple[SpeedChange, ...]
    """Changes of speed while the trace runs."""
    proxies: int
    """The number of proxies."""
    seed: int
    """The seed of everything random."""

    def run(self, policy: Policy, pool: Pool, trace: Trace, progress: Callable[[float], None] | None = None) -> Summary:
        """Replay a trace once. `progress` gets the part of it that has arrived."""
        costs = capacity.engines_of(pool, self.reference, self.speeds, self.largest)
        names = {item.name for item in pool.replicas}
        changes = tuple(item for item in self.changes if item.replica in names)
        return summarise(replay(Setup(pool, policy, costs, self.proxies, changes=changes), trace, self.seed, progress))

    def load(self, pool: Pool, trace: Trace) -> float:
        """Return the offered load as a part of what the engines of the pool carry."""
        return capacity.load_of(capacity.engines_of(pool, self.reference, self.speeds, self.largest), trace)


_WHOLE = ("sequences", "cache")


def study_of(options: SimulationOptions, topology: Topology, trace: Trace) -> Study:
    """Return what the options ask of this fleet. Raises UsageError."""
    if bool(options.find) != bool(options.slo):
        raise click.UsageError("--find and --slo go together: --find rate --slo 'ttft p99 < 2s'")
    if not math.isfinite(options.speedup):
        raise click.UsageError("--speedup: it is not a number")
    pool = _pool(topology, options.pool)
    if options.requests is not None:
        trace = trace.first(options.requests)
    if options.find and not trace.rate:
        raise click.UsageError("--find: all requests of the trace arrive at one time, so that they have no rate")
    speeds, changes = _speeds(options.slow, pool)
    return Study(
        _without(pool, options.lose),
        _policies(options.policy, topology, pool),
        trace.faster(options.speedup),
        _engine(options.engine),
        max(item.capacity for item in pool.replicas),
        speeds,
        changes,
        options.proxies,
        options.seed,
    )


def _pool(topology: Topology, name: str | None) -> Pool:
    pools = {pool.name: pool for pool in topology.pools}
    if name is None and len(pools) == 1:
        name = next(iter(pools))
    if name is None:
        raise click.UsageError(f"which pool gets the requests? Name it with --pool: {', '.join(pools)}")
    if name not in pools:
        raise click.UsageError(f"the fleet has no pool {name!r}; {did_you_mean(name, pools) or ', '.join(pools)}")
    if not pools[name].replicas:
        raise click.UsageError(f"pool {name} lists no replicas in its files: a simulation needs them")
    return pools[name]


def _policies(text: str | None, topology: Topology, pool: Pool) -> tuple[Policy, ...]:
    if text is None:
        kinds = {proxy.kind for proxy in topology.proxies} or {policy.proxy for policy in POLICIES.values()}
        hashed = pool.balance.algorithm == "hash"
        return tuple(item for item in POLICIES.values() if item.proxy in kinds and (hashed or item.algorithm != "hash"))
    chosen = []
    for name in text.split(","):
        policy = POLICIES.get(name.strip())
        if policy is None:
            hint = did_you_mean(name.strip(), POLICIES) or f"known: {', '.join(POLICIES)}"
            raise click.UsageError(f"no policy is called {name.strip()!r}; {hint}")
        chosen.append(policy)
    return tuple(chosen)


def _engine(text: str | None) -> CostModel:
    settings = {item.name: item for item in fields(CostModel)}
    values: dict[str, float] = {}
    for part in (text or "").split(",") if text else ():
        key, _, value = part.strip().partition("=")
        if key not in settings:
            raise click.UsageError(f"--engine: {key!r} is none of {', '.join(settings)}")
        with suppress(ValueError):
            values[key] = float(value)
        if not 0 < values.get(key, 0) < 1e9:
            raise click.UsageError(f"--engine: {key} is a number above 0, not {value!r}")
    whole: dict[str, Any] = {key: int(value) if key in _WHOLE else value for key, value in values.items()}
    return replace(CostModel(), **whole)


def _speeds(texts: Sequence[str], pool: Pool) -> tuple[dict[str, float], tuple[SpeedChange, ...]]:
    names = {item.name for item in pool.replicas}
    speeds: dict[str, float] = {}
    changes = []
    for text in texts:
        name, _, rest = text.partition("=")
        factor, _, at = rest.partition("@")
        if name not in names:
            raise click.UsageError(
                f"--slow: the pool has no replica {name!r}; {did_you_mean(name, names) or 'see status'}"
            )
        try:
            number, time = float(factor), float(at or 0)
        except ValueError:
            raise click.UsageError(f"--slow: {text!r} is not REPLICA=FACTOR[@SECONDS]") from None
        if not 0 <= number <= 100 or not 0 <= time < 1e9 or (not at and number == 0):
            raise click.UsageError(f"--slow: {text!r}: a factor above 0 and at most 100, 0 only with @SECONDS")
        if at:
            changes.append(SpeedChange(time, name, number))
        else:
            speeds[name] = number
    return speeds, tuple(changes)


def _without(pool: Pool, lose: str | None) -> Pool:
    if lose is None:
        return pool
    largest = max(pool.replicas, key=lambda item: item.capacity).name
    zone = lose.removeprefix("zone=") if lose.startswith("zone=") else None
    name = largest if lose == "largest" else lose

    def lost(replica: Replica) -> bool:
        return replica.zone == zone if zone is not None else replica.name == name

    rest = capacity.without(pool, lost)
    if len(rest.replicas) == len(pool.replicas):
        raise click.UsageError(f"--lose: pool {pool.name} has no {lose}")
    if not rest.replicas:
        raise click.UsageError(f"--lose: without {lose} pool {pool.name} has no replicas")
    return rest

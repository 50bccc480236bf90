"""The input to `lbctl simulate`: pools, policies, the load, the engines and their events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from lbctl.base.diagnostics import Diagnostics, did_you_mean
from lbctl.cli.simulate import options as texts
from lbctl.cli.simulate.calibrate import calibration
from lbctl.cli.simulate.options import SimulationOptions
from lbctl.compile.gpus import GPUS
from lbctl.compile.pools import with_algorithm
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Retry
from lbctl.ir.topology import Topology
from lbctl.model import pool as model
from lbctl.simulate import capacity, engine_file, profiles
from lbctl.simulate.build import replica_limit
from lbctl.simulate.engine import CostModel
from lbctl.simulate.policies import POLICIES, Policy
from lbctl.simulate.replay import replay
from lbctl.simulate.results import Summary, summarise
from lbctl.simulate.setup import Outage, Setup, SpeedChange
from lbctl.simulate.trace import Trace
from lbctl.targets.load import Loaded


@dataclass(frozen=True, slots=True)
class ReplicaEngines:
    """The replicas' engines.

    A replica's engine depends on its GPU if that GPU's engine is known. Otherwise, it scales with the replica's
    capacity.
    """

    strongest: CostModel
    largest: float
    """Capacity of the strongest replica in all fleets, even if it is lost."""
    gpus: Mapping[str, CostModel]
    """Maps each GPU type to the engine of a replica with this GPU."""
    model: str | None
    """Model whose profiles define all engines."""
    description: str
    """Sentence that describes the engines in the output."""

    def of(self, pool: Pool, speeds: Mapping[str, float]) -> tuple[CostModel, ...]:
        """Return each replica's engine. `speeds` maps replicas to speed factors. Raises UsageError."""
        if self.model is None:
            relative = capacity.engines_of(pool, self.strongest, self.largest)
            costs = [self.gpus.get(item.gpu or "", cost) for item, cost in zip(pool.replicas, relative, strict=True)]
        else:
            try:
                costs = [profiles.engine(self.model, item.gpu, item.gpu_count) for item in pool.replicas]
            except ValueError as error:
                raise click.UsageError(f"--model: {error}") from None
        return tuple(
            capacity.faster(cost, speeds.get(item.name, 1.0)) for item, cost in zip(pool.replicas, costs, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Study:
    """A fleet or GPU type, with its load."""

    name: str
    """Name that distinguishes this study from others, or an empty string if it is the only study."""
    pool: Pool
    """Pool that gets the requests, with all of its replicas."""
    written: model.Pool
    """The pool as written in the files."""
    policies: tuple[Policy, ...]
    """The proxies' policies, which are compared one after another."""
    trace: Trace
    engines: ReplicaEngines
    speeds: Mapping[str, float]
    """Maps each replica to its speed factor."""
    changes: tuple[SpeedChange, ...]
    """Speed changes during the trace."""
    outages: tuple[Outage, ...]
    """Replica outages."""
    joins: Mapping[str, float]
    """Maps each replica to the time at which it joins."""
    retry: Retry
    """How proxies retry requests if a replica is dead."""
    loss: Callable[[Pool], Pool]
    """Removes the lost replicas."""
    prices: Mapping[str, float]
    """Maps each GPU type to its price per hour."""
    proxies: int
    delay: float
    """Delay between a sample and its use, in seconds."""
    seed: int
    """Random seed."""

    def faster(self, factor: float) -> Study:
        """Return the study with the rate multiplied by `factor`. Events start at the same position in the trace.

        The duration of outages does not change.
        """
        return replace(
            self,
            trace=self.trace.faster(factor),
            changes=tuple(replace(item, at=item.at / factor) for item in self.changes),
            outages=tuple(
                replace(item, begin=item.begin / factor, end=item.begin / factor + item.end - item.begin)
                for item in self.outages
            ),
            joins={name: at / factor for name, at in self.joins.items()},
        )

    def row(self, policy: Policy) -> str:
        """Return the name of the result row for a policy."""
        return f"{self.name}/{policy.name}" if self.name else policy.name

    def run(self, policy: Policy, pool: Pool, progress: Callable[[float], None] | None = None) -> Summary:
        """Replay the trace once, without the lost replicas.

        `progress` is called with the fraction of the trace that has arrived.
        """
        pool = with_algorithm(self.loss(pool), self.written, policy.algorithm)
        names = {item.name for item in pool.replicas}
        setup = Setup(
            pool,
            policy,
            self.engines.of(pool, self.speeds),
            self.proxies,
            changes=tuple(item for item in self.changes if item.replica in names),
            outages=tuple(item for item in self.outages if item.replica in names),
            joins={name: at for name, at in self.joins.items() if name in names},
            retry=self.retry,
            delay=self.delay,
        )
        return replace(summarise(replay(setup, self.trace, self.seed, progress)), fleet=self.name)

    def load(self, pool: Pool) -> float:
        """Return the load relative to the capacity of the pool's engines, without lost and drained replicas."""
        return capacity.load_of(self._serving(pool), self.trace)

    def carried(self, pool: Pool) -> float:
        """Return the capacity of the pool's engines in requests per second, without lost and drained replicas."""
        return capacity.carried(self._serving(pool), self.trace)

    def _serving(self, pool: Pool) -> list[CostModel]:
        """Return the engines that get requests. The proxies' limits cap their number of sequences."""
        pool = capacity.serving(self.loss(pool))
        limit = replica_limit(pool, self.proxies) * self.proxies
        costs = self.engines.of(pool, self.speeds)
        return [replace(cost, sequences=min(cost.sequences, limit or cost.sequences)) for cost in costs]

    def unused_faults(self, pool: Pool) -> list[str]:
        """Return the replicas in `--slow`, `--kill` or `--join` that the pool does not contain."""
        named = {*self.speeds, *self.joins, *(item.replica for item in self.changes)}
        named |= {item.replica for item in self.outages}
        return sorted(named - {item.name for item in pool.replicas})

    def cost(self, pool: Pool) -> float | None:
        """Return the hourly price of the pool's GPUs, or None if the price of any of them is unknown."""
        if not all(item.gpu in self.prices for item in pool.replicas):
            return None
        return sum(self.prices[item.gpu or ""] * item.gpu_count for item in pool.replicas)


def studies_of(
    options: SimulationOptions, fleets: Sequence[Loaded], trace: Trace, diagnostics: Diagnostics
) -> tuple[Study, ...]:
    """Return the studies of these fleets with these options.

    Raises UsageError. Errors in an engine file are added to `diagnostics`.
    """
    if options.requests is not None:
        trace = trace.first(options.requests)
    if options.find and not trace.rate:
        raise click.UsageError("--find: all requests of the trace arrive at the same time, so they have no rate")
    pools = [_pool(loaded.compiled.topology, options.pool) for loaded in fleets]
    names = _names([options.paths, *((path,) for path in options.against)])
    engines = _engines(options, pools, diagnostics)
    studies = [
        _study(options, name, loaded, pool, engines, trace.faster(options.speedup))
        for name, loaded, pool in zip(names, fleets, pools, strict=True)
    ]
    if not options.gpu:
        return tuple(studies)
    tables = [
        {name: gpu.throughput for name, gpu in GPUS.items()} | dict(loaded.source.fleet.gpus) for loaded in fleets
    ]
    largest = max(map(_largest_throughput, pools, tables))
    if options.model is None and not largest:
        raise click.UsageError("--gpu: the fleet has no GPUs to compare with (set `gpu`, or use --model)")
    return tuple(
        _of_gpu(study, text, throughputs, largest)
        for study, throughputs in zip(studies, tables, strict=True)
        for text in options.gpu
    )


def _names(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a short name for each fleet: the shortest distinct suffix of its path, or "" for a single fleet."""
    if len(paths) == 1:
        return [""]
    parts = [Path(each[0]).with_suffix("").parts for each in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name}-{number}" for number, name in enumerate(names, 1)]


def _study(
    options: SimulationOptions, name: str, loaded: Loaded, pool: Pool, engines: ReplicaEngines, trace: Trace
) -> Study:
    topology = loaded.compiled.topology
    texts.check_losses(options.lose, pool)
    replicas = texts.obstacles(pool, options.lose)
    speeds, changes = texts.speeds_of(options.slow, replicas)
    return Study(
        name,
        pool,
        loaded.source.fleet.pools[pool.name],
        _policies(options.policy, topology, pool),
        trace,
        engines,
        speeds,
        changes,
        texts.outages_of(options.kill, replicas),
        texts.joins_of(options.join, replicas),
        _retry(topology, pool),
        texts.loss_of(options.lose),
        texts.prices_of(options.price),
        options.proxies,
        texts.seconds_of("--telemetry-delay", options.telemetry_delay),
        options.seed,
    )


def _largest_throughput(pool: Pool, throughputs: Mapping[str, float]) -> float:
    """Return the throughput of the pool's strongest replica, ignoring weights; 0 if no replica specifies its GPUs."""
    return max((throughputs.get(item.gpu or "", 0.0) * item.gpu_count for item in pool.replicas), default=0.0)


def _of_gpu(study: Study, text: str, throughputs: Mapping[str, float], largest: float) -> Study:
    """Return the study with one replica of a GPU type. `largest` is the throughput of the strongest replica."""
    return replace(
        study,
        name=f"{study.name}/{text}" if study.name else text,
        pool=texts.gpu_pool(study.pool, text, throughputs),
        engines=replace(study.engines, largest=largest),
        changes=(),
        outages=(),
        joins={},
        speeds={},
    )


def _pool(topology: Topology, name: str | None) -> Pool:
    pools = {pool.name: pool for pool in topology.pools}
    if name is None and len(pools) == 1:
        name = next(iter(pools))
    if name is None:
        raise click.UsageError(f"the fleet has several pools; choose one with --pool: {', '.join(pools)}")
    if name not in pools:
        raise click.UsageError(f"the fleet has no pool {name!r}; {did_you_mean(name, pools) or ', '.join(pools)}")
    if not pools[name].replicas:
        raise click.UsageError(f"pool {name} has no replicas in the files, but a simulation needs them")
    if not capacity.serving(pools[name]).replicas:
        raise click.UsageError(f"pool {name} has only drained replicas, which get no requests")
    return pools[name]


def _policies(text: str | None, topology: Topology, pool: Pool) -> tuple[Policy, ...]:
    if text is None:
        known = {policy.proxy for policy in POLICIES.values()}
        kinds = known & {proxy.kind for proxy in topology.proxies} or known
        hashed = pool.balance.algorithm == "hash"
        return tuple(item for item in POLICIES.values() if item.proxy in kinds and (hashed or item.algorithm != "hash"))
    chosen = []
    for name in text.split(","):
        policy = POLICIES.get(name.strip())
        if policy is None:
            hint = did_you_mean(name.strip(), POLICIES) or f"known: {', '.join(POLICIES)}"
            raise click.UsageError(f"unknown policy {name.strip()!r}; {hint}")
        chosen.append(policy)
    return tuple(chosen)


def _retry(topology: Topology, pool: Pool) -> Retry:
    """Return the retries for the pool's routes. If routes differ, use the lowest number and only shared conditions."""
    retries = [
        route.retry
        for route in topology.routes
        if isinstance(route.action, Forward) and pool.name in route.action.pools
    ]
    if not retries:
        return Retry()
    fewest = min(retries, key=lambda item: item.attempts if "connect_failure" in item.when else 0)
    return replace(fewest, idempotent=all(item.idempotent for item in retries))


# ── Engines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_DEFAULT_ENGINE = "assumed to be Llama-2-70B on 8 H100s with vLLM"
"""Engine of a `CostModel` that is created without arguments."""
_PROPORTIONAL = "Engines: the strongest replica is {}; the others scale with their capacity."


def _engines(options: SimulationOptions, pools: Sequence[Pool], diagnostics: Diagnostics) -> ReplicaEngines:
    largest = max(item.capacity for pool in pools for item in pool.replicas)
    if options.model is not None and options.model not in profiles.MODELS:
        suggestion = did_you_mean(options.model, profiles.MODELS) or ", ".join(profiles.MODELS)
        raise click.UsageError(f"--model: there is no engine for {options.model!r}; {suggestion}")
    if options.calibrate is not None:
        fitted = calibration(options.calibrate, texts.seconds_of("--calibrate-for", options.calibrate_for))
        shown = ",".join(f"{key}={getattr(fitted.cost, key):.3g}" for key in ("a", "b", "c", "p"))
        click.echo(
            f"--calibrate gives --engine {shown} ({fitted.samples} intervals, median error {100 * fitted.error:.1f} %)",
            err=True,
        )
        return ReplicaEngines(fitted.cost, largest, {}, None, _PROPORTIONAL.format("the engine of --calibrate"))
    text = options.engine or ""
    if text and "=" not in text:
        file = engine_file.read(text, diagnostics) or engine_file.EngineFile()
        return ReplicaEngines(file.strongest, largest, file.gpus, None, f"Engines: {text}.")
    if options.model is not None:
        described = f"Engines: the profiles of {options.model} on the GPUs of each replica."
    elif text:
        described = _PROPORTIONAL.format(f"--engine {text}")
    else:
        described = f"{_PROPORTIONAL.format(_DEFAULT_ENGINE)} For your engines, use --model, --engine or --calibrate."
    return ReplicaEngines(_engine(text), largest, {}, options.model, described)


def _engine(text: str) -> CostModel:
    settings = {item.name: item for item in fields(CostModel)}
    values: dict[str, float] = {}
    for part in text.split(",") if text else ():
        key, _, value = part.strip().partition("=")
        if key not in settings:
            raise click.UsageError(f"--engine: {key!r} is not one of {', '.join(settings)}")
        number = None
        with suppress(ValueError):
            number = engine_file.cost(key, float(value))
        if number is None:
            raise click.UsageError(f"--engine: {key} must be {engine_file.wanted(key)}, not {value!r}")
        values[key] = number
    whole: dict[str, Any] = {key: int(value) if key in engine_file.WHOLE else value for key, value in values.items()}
    return replace(CostModel(), **whole)

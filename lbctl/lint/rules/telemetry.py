"""Rules about telemetry: whether its sources support the features that depend on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.compile.gpus import GPUS
from lbctl.control.weighting.composite import DEFAULT
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.lint.fleet_view import FleetView, sources_of, telemetries
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.signals import KINDS, table
from lbctl.signals.signal import RATES

_MAX_INTERVAL = 60_000
_MAX_DELAY = 30_000
_TIMEOUT = 2_000
_MAX_SWING = {"least_request": 2.0, "least_time": 2.0}
"""Maps each balancing algorithm to the maximum value of gain × (delay + 10 s) ÷ interval that did not cause oscillation
in simulation."""
_MAX_SWING_OTHERWISE = 0.5
_DERIVED = {
    "ttft": ("ttft_seconds", "ttft_count"),
    "token_latency": ("itl_seconds", "itl_count"),
    "cache_hits": ("cache_found", "cache_lookups"),
    **{name: (counter,) for name, counter in RATES.items()},
}


@rule("LB610")
def telemetry_too_slow(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report telemetry that is too slow for the weights that depend on it (LB610)."""
    for pool in fleet.pools:
        if pool.weighting.strategy != "static" and pool.telemetry is not None:
            problem = _instability(pool, pool.telemetry)
            if problem:
                hint = "set interval: 5s, timeout: 2s and smoothing: 20s, or strategy: static"
                yield RuleFinding(("pools", pool.name, "telemetry", "interval"), problem, hint)


def _instability(pool: Pool, telemetry: Telemetry) -> str:
    if pool.weighting.strategy == "adaptive":
        is_slow = telemetry.interval > _MAX_INTERVAL or telemetry.timeout > _MAX_DELAY
        problem = "adaptive weights are stable only up to an interval of 60 s and a timeout of 30 s"
        return problem if is_slow else ""
    gain = 1 - math.exp(-telemetry.interval / pool.weighting.smoothing)
    swing = gain * (telemetry.interval + telemetry.timeout + 10_000) / telemetry.interval
    limit = _MAX_SWING.get(pool.balance.algorithm, _MAX_SWING_OTHERWISE)
    problem = f"gain × delay ÷ interval is {swing:.1f}, and above {limit:g} the weights oscillate"
    return problem if swing > limit else ""


@rule("LB611")
def composite_feedback(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report composite scores that depend on the weights that they set (LB611)."""
    for pool in fleet.pools:
        if pool.weighting.strategy == "composite":
            path = ("pools", pool.name, "weighting", "strategy")
            message = "a load-based score feeds back on itself and favours wedged replicas"
            yield RuleFinding(path, message, "strategy: adaptive")


@rule("LB612")
def stale_after_one_loss(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report samples that become stale after a single lost scrape (LB612)."""
    for pool in fleet.pools:
        for path, telemetry in telemetries(pool):
            if telemetry.stale_after < 2 * telemetry.interval:
                key_path, better = (*path, "stale_after"), f"{3 * telemetry.interval}ms"
                if telemetry.interval % 1000 == 0:
                    better = f"{3 * telemetry.interval // 1000}s"
                stale, interval = telemetry.stale_after / 1000, telemetry.interval / 1000
                message = f"samples become stale after {stale:g} s, which is less than two intervals of {interval:g} s"
                yield RuleFinding(key_path, message, f"stale_after: {better}", Edit(key_path, better))


@rule("LB613")
def composite_without_source(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report scores with signals that no source provides (LB613)."""
    for pool in fleet.pools:
        if pool.weighting.strategy == "composite":
            given = {name for source in sources_of(pool) for name in signals_of(source)}
            missing = [name for name, _ in pool.weighting.composite or DEFAULT if name not in given]
            composite_path = ("pools", pool.name, "weighting", "composite")
            if missing and not pool.weighting.composite:
                message = f"none of this pool's sources provides {', '.join(missing)}, which the default score uses"
                yield RuleFinding(composite_path, message, "set composite: {SIGNAL: PART}, or add a source")
                continue
            for name in missing:
                yield RuleFinding(
                    (*composite_path, name),
                    f"none of this pool's sources provides {name}",
                    "remove it, or add a source",
                )


def signals_of(source: MetricsSource) -> set[str]:
    """Return the names of the signals that a source provides."""
    if source.kind not in KINDS:
        return {source.signal} if source.signal else set()
    metrics_table = table(source.kind)
    derived = {name for name, parts in _DERIVED.items() if all(part in metrics_table.series for part in parts)}
    return set(metrics_table.series) | derived | ({"progress"} if metrics_table.heartbeat else set())


@rule("LB614")
def removed_metric(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report metrics that newer versions have removed or renamed (LB614)."""
    replacements = {name: instead for kind in KINDS for name, instead in table(kind).removed.items()}
    for pool in fleet.pools:
        for path, telemetry in telemetries(pool):
            for index, source in enumerate(telemetry.sources):
                for key, value in (("metric", source.metric), ("query", source.query)):
                    yield from _removed_names((*path, "sources", index, key), value or "", replacements)


def _removed_names(path: Path, value: str, replacements: dict[str, str]) -> Iterator[RuleFinding]:
    for name, instead in replacements.items():
        pattern = re.compile(rf"(?<![\w:]){re.escape(name)}(?=(_sum|_count|_bucket)?(?![\w:]))")
        if pattern.search(value):
            is_name = re.fullmatch(r"[\w:]+", instead) is not None
            fix = Edit(path, pattern.sub(instead, value)) if is_name else None
            yield RuleFinding(path, f"{name} was removed or renamed in newer versions", f"use {instead}", fix)


@rule("LB615")
def free_memory_of_reserving_engine(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report `min_free_memory` for engines that reserve GPU memory at startup (LB615)."""
    for pool in fleet.pools:
        kinds = {source.kind for source in sources_of(pool) if source.kind in KINDS}
        engines = sorted(kind for kind in kinds if table(kind).reserves_memory)
        if pool.deep.min_free_memory is not None and engines:
            path = ("pools", pool.name, "health", "deep", "min_free_memory")
            message = f"{engines[0]} reserves the GPU memory at startup, so min_free_memory is not checked"
            yield RuleFinding(path, message, "remove it", Edit(path, None))


@rule("LB616")
def gpu_oversubscribed(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report replicas that share a GPU that does not have enough memory for all of them (LB616)."""
    by_device: dict[tuple[str, str], list[tuple[Pool, Replica]]] = {}
    for pool in fleet.pools:
        for replica in pool.replicas:
            for device in replica.devices:
                by_device.setdefault((replica.address.host, device), []).append((pool, replica))
    for (host, device), sharing in by_device.items():
        problem = _memory_conflict(sharing) if len(sharing) > 1 else ""
        if problem:
            pool, last = sharing[-1]
            message = f"replica {sharing[0][1].name} also uses GPU {device} of {host}: {problem}"
            hint = "give each replica its own GPU or MIG slice"
            yield RuleFinding(("pools", pool.name, "replicas", last.name, "devices"), message, hint)


def _memory_conflict(sharing: list[tuple[Pool, Replica]]) -> str:
    if sum(_reserves(pool, replica) for pool, replica in sharing) > 1:
        return "each engine reserves most of the GPU's memory"
    required = sum(pool.deep.min_free_memory or 0 for pool, _ in sharing)
    gpu = GPUS.get(sharing[0][1].gpu or "")
    if gpu and gpu.memory_gb and required > gpu.memory_gb * 1e9:
        return f"together they need {required / 2**30:.0f} GiB of free memory, but the GPU has {gpu.memory_gb:g} GB"
    return ""


def _reserves(pool: Pool, replica: Replica) -> bool:
    telemetry = replica.telemetry or pool.telemetry
    kinds = {source.kind for source in telemetry.sources if source.kind in KINDS} if telemetry else set()
    return any(table(kind).reserves_memory for kind in kinds)


@rule("LB617")
def shared_host_without_devices(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report replicas that share a host's GPUs but do not set `devices` (LB617)."""
    hosts: dict[str, list[tuple[str, Replica]]] = {}
    for pool in fleet.pools:
        for replica in pool.replicas:
            if _reads_gpus(replica.telemetry or pool.telemetry):
                hosts.setdefault(replica.address.host, []).append((pool.name, replica))
    for host, replicas in hosts.items():
        without_devices = [(name, candidate) for name, candidate in replicas if not candidate.devices]
        if len(replicas) > 1 and without_devices:
            owner, first = without_devices[0]
            message = f"{len(replicas)} replicas run on {host}, and lbctl assigns all of its GPUs to each of them"
            hint = 'list the GPUs of each replica, for example devices: ["0"]'
            yield RuleFinding(("pools", owner, "replicas", first.name, "devices"), message, hint)


def _reads_gpus(telemetry: Telemetry | None) -> bool:
    kinds = {source.kind for source in telemetry.sources if source.kind in KINDS} if telemetry else set()
    return any(table(kind).gpus is not None for kind in kinds)


@rule("LB618")
def timeout_above_interval(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report scrape timeouts that are longer than the interval (LB618)."""
    for pool in fleet.pools:
        for path, telemetry in telemetries(pool):
            if telemetry.timeout > max(telemetry.interval, _TIMEOUT):
                key_path = (*path, "timeout")
                timeout, interval = telemetry.timeout / 1000, telemetry.interval / 1000
                message = f"the timeout is {timeout:g} s, but the interval between scrapes is {interval:g} s"
                yield RuleFinding(key_path, message, "timeout: 2s", Edit(key_path, "2s"))

"""The facts of a pool and of its replicas."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.urls import with_digests
from lbctl.ir import pools as p
from lbctl.ir.facts.words import Fact, each, most, percent, size, temperature, time, under


def pool(item: p.Pool) -> Iterator[Fact]:
    if item.model:
        yield ("model", "name"), item.model.name
        yield ("model", "version"), item.model.version
        yield ("model", "adapters"), item.model.adapters or None
    yield from under("labels", each(item.labels))
    yield ("protocol",), item.protocol
    yield from under("balance", _balance(item.balance))
    if item.affinity:
        yield ("affinity", "cookie"), item.affinity.cookie
        yield ("affinity", "ttl"), time(item.affinity.ttl)
    if item.discovery:
        yield from under("discovery", _discovery(item.discovery))
    yield ("drain_deadline",), time(item.drain_deadline)
    if item.locality:
        yield ("locality", "prefer"), item.locality.prefer
        yield ("locality", "spill_below"), percent(item.locality.spill_below)
    yield from _limits(item)
    yield from under("health", _health(item))
    if item.telemetry:
        yield from under("telemetry", _telemetry(item.telemetry))
    yield from under("weighting", _weighting(item.weighting))
    if item.tls:
        names = ("ca", "server_name", "certificate", "key")
        yield from ((("tls", name), getattr(item.tls, name)) for name in names)


def replica(item: p.Replica) -> Iterator[Fact]:
    yield ("address",), item.address
    yield ("capacity",), item.capacity
    yield ("priority",), item.priority
    yield ("drain",), item.drain
    yield ("region",), item.region
    yield ("zone",), item.zone
    yield ("gpu",), item.gpu
    yield ("gpu_count",), item.gpu_count
    yield ("devices",), tuple(sorted(item.devices)) or None
    yield from under("labels", each(item.labels))
    if item.telemetry:
        yield from under("telemetry", _telemetry(item.telemetry))


def _balance(item: p.Balance) -> Iterator[Fact]:
    yield ("algorithm",), item.algorithm
    if item.key:
        yield ("hash", "key", item.key.kind), item.key.bytes or item.key.name or "true"
        yield ("hash", "bounded_load"), "none" if item.bounded_load is None else item.bounded_load


def _discovery(item: p.DnsDiscovery | p.FileDiscovery) -> Iterator[Fact]:
    if isinstance(item, p.FileDiscovery):
        yield ("file", "path"), item.path
        return
    yield ("dns", "name"), item.name
    yield ("dns", "port"), item.port
    yield ("dns", "refresh"), time(item.refresh)
    yield ("dns", "max_replicas"), item.max_replicas
    yield ("dns", "gpu"), item.gpu
    yield ("dns", "capacity"), item.capacity
    yield ("dns", "resolvers"), item.resolvers or None


def _limits(item: p.Pool) -> Iterator[Fact]:
    yield ("connections", "idle"), time(item.connections.idle)
    yield ("connections", "max_requests"), most(item.connections.max_requests)
    yield ("timeouts", "connect"), time(item.connect_timeout)
    yield ("timeouts", "queue"), time(item.queue_timeout)
    breaker = item.circuit_breaker
    for name in ("max_connections", "max_pending_requests", "max_requests", "max_retries"):
        yield ("circuit_breaker", name), getattr(breaker, name)
    yield ("circuit_breaker", "per_replica", "max_connections"), most(breaker.replica_max_connections)
    yield ("circuit_breaker", "per_replica", "max_requests"), most(breaker.replica_max_requests)
    if item.slow_start:
        yield ("slow_start", "window"), time(item.slow_start.window)
        yield ("slow_start", "min_weight"), percent(item.slow_start.min_weight)
        yield ("slow_start", "aggression"), item.slow_start.aggression


def _health(item: p.Pool) -> Iterator[Fact]:
    if item.active:
        yield from under("active", _active(item.active))
    else:
        yield ("active",), "none"
    if item.passive:
        yield from under("passive", _passive(item.passive))
    yield from under("deep", _deep(item.deep))
    if item.load_shedding:
        yield ("load_shedding", "min_healthy"), percent(item.load_shedding.min_healthy)
        yield ("load_shedding", "retry_after"), time(item.load_shedding.retry_after)


def _active(item: p.ActiveCheck) -> Iterator[Fact]:
    if isinstance(item.probe, p.HttpCheck):
        yield ("http", "path"), item.probe.path
        yield ("http", "host"), item.probe.host
        yield ("http", "statuses"), item.probe.statuses
        yield ("http", "body_contains"), item.probe.body_contains
    elif isinstance(item.probe, p.GrpcCheck):
        yield ("grpc", "service"), item.probe.service or '""'
    else:
        yield ("tcp",), "{}"
    yield ("port",), "the replica's" if item.port is None else item.port
    yield ("interval",), time(item.interval)
    yield ("timeout",), time(item.timeout)
    yield ("jitter",), percent(item.jitter)
    yield ("unhealthy_threshold",), item.unhealthy_threshold
    yield ("healthy_threshold",), item.healthy_threshold


def _passive(item: p.PassiveCheck) -> Iterator[Fact]:
    yield ("consecutive_5xx",), item.consecutive_5xx
    yield ("consecutive_connect_failures",), item.consecutive_connect_failures
    yield ("error_rate", "percent"), percent(item.error_percent)
    yield ("error_rate", "window"), time(item.error_window)
    yield ("error_rate", "min_requests"), item.error_min_requests
    yield ("ejection_time",), time(item.ejection_time)
    yield ("max_ejection",), percent(item.max_ejection)


def _deep(item: p.DeepCheck) -> Iterator[Fact]:
    yield ("min_free_memory",), "none" if item.min_free_memory is None else size(item.min_free_memory)
    yield ("max_temperature",), "none" if item.max_temperature is None else temperature(item.max_temperature)
    yield ("fatal_xids",), item.fatal_xids
    yield ("stalled_after",), time(item.stalled_after)


def _telemetry(item: p.Telemetry) -> Iterator[Fact]:
    """The first source with a value gives it: their order counts."""
    yield ("interval",), time(item.interval)
    yield ("timeout",), time(item.timeout)
    yield ("stale_after",), time(item.stale_after)
    for place, source in enumerate(item.sources):
        told = {"signal": source.signal, "metric": source.metric, "query": source.query, "unit": source.unit}
        words = [source.kind, with_digests(source.url), *(f"{key}={value}" for key, value in told.items() if value)]
        yield ("sources", place), " ".join([*words, *(f"{key}={value}" for key, value in source.match_labels)])


def _weighting(item: p.Weighting) -> Iterator[Fact]:
    yield ("strategy",), item.strategy
    yield ("adaptive", "smoothing"), time(item.smoothing)
    for name in ("act_above", "release_below", "across_types"):
        yield ("adaptive", name), percent(getattr(item, name))
    yield from under("composite", (((name,), part) for name, part in item.composite))
    yield ("max_step", "down"), percent(item.max_step_down)
    yield ("max_step", "up"), percent(item.max_step_up)
    for name in ("deadband", "floor", "ceiling"):
        yield (name,), percent(getattr(item, name))

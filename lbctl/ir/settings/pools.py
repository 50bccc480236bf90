"""The settings of a pool and its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from lbctl.base.urls import with_digests
from lbctl.ir import pools as p
from lbctl.ir.settings.format import Setting, duration, entries, limit, nested, percent, size, temperature
from lbctl.ir.written_credentials import shown_path


def pool(pool: p.Pool) -> Iterator[Setting]:
    """Yield the pool's settings without its replicas."""
    if pool.model:
        yield ("model", "name"), pool.model.name
        yield ("model", "version"), pool.model.version
        yield ("model", "adapters"), pool.model.adapters or None
    yield from nested("labels", entries(pool.labels))
    yield ("protocol",), pool.protocol
    yield from nested("balance", _balance(pool.balance))
    yield from _queue(pool.balance)
    if pool.affinity:
        yield ("affinity", "cookie"), pool.affinity.cookie
        yield ("affinity", "ttl"), duration(pool.affinity.ttl)
    if pool.session:
        yield ("affinity", "header"), pool.session.name
        yield ("affinity", "ttl"), duration(pool.session.ttl)
    if pool.discovery:
        yield from nested("discovery", _discovery(pool.discovery))
    yield ("drain_deadline",), duration(pool.drain_deadline)
    if pool.locality:
        yield ("locality", "prefer"), pool.locality.prefer
        yield ("locality", "spill_below"), percent(pool.locality.spill_below)
    yield from _limits(pool)
    yield from nested("health", _health(pool))
    if pool.telemetry:
        yield from nested("telemetry", _telemetry(pool.telemetry))
    yield from nested("weighting", _weighting(pool.weighting))
    if pool.tls:
        names = ("ca", "server_name", "certificate", "key")
        yield from ((("tls", name), getattr(pool.tls, name)) for name in names)
    if pool.credentials:
        yield ("credentials", "header"), pool.credentials.name
        yield ("credentials", "file"), pool.credentials.file
    if pool.upstream:
        yield from nested("upstream", _upstream(pool.upstream))


def _upstream(upstream: p.Upstream) -> Iterator[Setting]:
    yield ("host",), upstream.host
    yield ("path_prefix",), upstream.path_prefix or None
    for header in upstream.headers:
        if header.file is None:
            yield ("headers", header.name), header.text
        else:
            yield ("headers", header.name, "prefix"), header.text or None
            yield ("headers", header.name, "file"), header.file


def replica(replica: p.Replica) -> Iterator[Setting]:
    """Yield the replica's settings."""
    yield ("address",), replica.address
    yield ("capacity",), replica.capacity
    yield ("priority",), replica.priority
    yield ("drain",), replica.drain
    yield ("region",), replica.region
    yield ("zone",), replica.zone
    yield ("gpu",), replica.gpu
    yield ("gpu_count",), replica.gpu_count
    yield ("devices",), tuple(sorted(replica.devices)) or None
    yield ("agent_port",), replica.agent_port
    yield from nested("labels", entries(replica.labels))
    if replica.telemetry:
        yield from nested("telemetry", _telemetry(replica.telemetry))


def _balance(balance: p.Balance) -> Iterator[Setting]:
    yield ("algorithm",), balance.name
    if balance.pick:
        yield from nested("pick", _pick(balance.pick))
        yield ("pick", "otherwise"), balance.algorithm
    if balance.key:
        yield ("hash", "key", balance.key.kind), balance.key.bytes or balance.key.name or "true"
        yield ("hash", "bounded_load"), "none" if balance.bounded_load is None else balance.bounded_load


def _pick(pick: p.PickPolicy) -> Iterator[Setting]:
    """Yield the `pick` settings. The order of session keys is significant."""
    for index, key in enumerate(pick.session):
        yield ("session", index), key.header or None
        yield ("session", index, "body"), key.body or None
    if pick.prefix:
        yield ("prefix", "block"), pick.prefix.block
        yield ("prefix", "blocks"), pick.prefix.blocks
    else:
        yield ("prefix",), "off"
    yield ("bound",), pick.bound
    yield ("timeout",), duration(pick.timeout)


def _queue(balance: p.Balance) -> Iterator[Setting]:
    if balance.queue is not None:
        yield from nested("queue", _queue_keys(balance.queue))


def _queue_keys(queue: p.QueuePolicy) -> Iterator[Setting]:
    yield ("max_wait",), duration(queue.max_wait)
    yield ("max_requests",), queue.max_requests
    yield ("order",), queue.order
    if queue.by == "header":
        yield ("by", "header"), queue.header
    else:
        yield ("by",), queue.by
    yield from nested("weights", (((tenant,), weight) for tenant, weight in queue.weights))
    if queue.priority_header:
        yield ("priority", "header"), queue.priority_header
        yield from nested("priority", nested("tenants", entries(queue.priority_tenants)))


def _discovery(discovery: p.Discovery) -> Iterator[Setting]:
    if isinstance(discovery, p.KubernetesDiscovery):
        yield from nested("kubernetes", _kubernetes(discovery))
        return
    if not isinstance(discovery, p.DnsDiscovery):
        yield from (((discovery.kind, key.name), str(getattr(discovery, key.name))) for key in fields(discovery))  # type: ignore[arg-type]
        return
    yield ("dns", "name"), discovery.name
    yield ("dns", "port"), discovery.port
    yield ("dns", "refresh"), duration(discovery.refresh)
    yield ("dns", "max_replicas"), discovery.max_replicas
    yield ("dns", "gpu"), discovery.gpu
    yield ("dns", "capacity"), discovery.capacity
    yield ("dns", "resolvers"), discovery.resolvers or None


def _kubernetes(discovery: p.KubernetesDiscovery) -> Iterator[Setting]:
    """Yield the settings as written. `kubeconfig_file` is derived from the position of its file."""
    yield ("namespace",), discovery.namespace
    yield ("service",), discovery.service or None
    yield ("inference_pool",), discovery.inference_pool or None
    yield ("port",), discovery.port or None
    yield ("service_port",), discovery.service_port
    yield from nested("selector", entries(discovery.selector))
    yield ("kubeconfig",), discovery.kubeconfig
    yield ("context",), discovery.context
    for name, source in (("gpu_from", discovery.gpu_from), ("zone_from", discovery.zone_from)):
        if isinstance(source, p.LabelSource):
            yield (name, f"{source.of}_label"), source.label
        elif source:
            yield (name,), source
    yield ("max_replicas",), discovery.max_replicas
    yield from nested("gpus", entries(tuple((name, f"{value:g}") for name, value in discovery.gpus)))


def _idle(connections: p.Connections) -> str:
    """Format the lifetime of idle connections. `unlimited` implies that no server closes them."""
    kept = duration(connections.idle)
    return kept if connections.closed_by_servers or connections.idle is None else f"{kept} (servers never close them)"


def _limits(pool: p.Pool) -> Iterator[Setting]:
    yield ("connections", "idle"), _idle(pool.connections)
    yield ("connections", "max_requests"), limit(pool.connections.max_requests)
    yield ("timeouts", "connect"), duration(pool.connect_timeout)
    yield ("timeouts", "queue"), duration(pool.queue_timeout)
    breaker = pool.circuit_breaker
    for name in ("max_connections", "max_pending_requests", "max_requests", "max_retries"):
        yield ("circuit_breaker", name), getattr(breaker, name)
    yield ("circuit_breaker", "per_replica", "max_connections"), limit(breaker.replica_max_connections)
    yield ("circuit_breaker", "per_replica", "max_requests"), limit(breaker.replica_max_requests)
    if pool.slow_start:
        yield ("slow_start", "window"), duration(pool.slow_start.window)
        yield ("slow_start", "min_weight"), percent(pool.slow_start.min_weight)
        yield ("slow_start", "aggression"), pool.slow_start.aggression


def _health(pool: p.Pool) -> Iterator[Setting]:
    if pool.active:
        yield from nested("active", _active(pool, pool.active))
    else:
        yield ("active",), "none"
    if pool.active and pool.agent:
        yield ("agent", "port"), pool.agent.port
        yield from nested("agent", nested("check", _probe(pool.active.probe, pool.active.port)))
    if pool.passive:
        yield from nested("passive", _passive(pool.passive))
    yield from nested("deep", _deep(pool.deep))
    if pool.fail_open:
        yield ("fail_open",), "true"
    if pool.load_shedding:
        yield ("load_shedding", "min_healthy"), percent(pool.load_shedding.min_healthy)
        yield ("load_shedding", "retry_after"), duration(pool.load_shedding.retry_after)


def _probe(probe: p.HttpCheck | p.GrpcCheck | p.TcpCheck, port: int | None) -> Iterator[Setting]:
    if isinstance(probe, p.HttpCheck):
        yield ("http", "path"), shown_path(probe.path)
        yield ("http", "host"), probe.host
        yield ("http", "statuses"), probe.statuses
        yield ("http", "body_contains"), probe.body_contains
    elif isinstance(probe, p.GrpcCheck):
        yield ("grpc", "service"), probe.service or '""'
    else:
        yield ("tcp",), "{}"
    yield ("port",), "the replica's" if port is None else port


def _active(pool: p.Pool, check: p.ActiveCheck) -> Iterator[Setting]:
    """Yield the engine check as written in the files, and its timing, which also applies to agent checks."""
    if pool.engine_probe is not None:
        yield from _probe(pool.engine_probe, pool.agent.engine_port if pool.agent else check.port)
    yield ("interval",), duration(check.interval)
    yield ("timeout",), duration(check.timeout)
    yield ("jitter",), percent(check.jitter)
    yield ("unhealthy_threshold",), check.unhealthy_threshold
    yield ("healthy_threshold",), check.healthy_threshold


def _passive(check: p.PassiveCheck) -> Iterator[Setting]:
    yield (
        ("consecutive_5xx",),
        check.consecutive_5xx if check.is_5xx_written else f"{check.consecutive_5xx}, by default",
    )
    yield ("consecutive_connect_failures",), check.consecutive_connect_failures
    yield ("error_rate", "percent"), percent(check.error_percent)
    yield ("error_rate", "window"), duration(check.error_window)
    yield ("error_rate", "min_requests"), check.error_min_requests
    yield ("ejection_time",), duration(check.ejection_time)
    yield ("max_ejection",), percent(check.max_ejection)


def _deep(check: p.DeepCheck) -> Iterator[Setting]:
    yield ("min_free_memory",), "none" if check.min_free_memory is None else size(check.min_free_memory)
    yield (
        ("max_temperature",),
        "none" if check.max_temperature is None else temperature(check.max_temperature),
    )
    yield ("fatal_xids",), check.fatal_xids
    yield ("stalled_after",), duration(check.stalled_after)


def _telemetry(telemetry: p.Telemetry) -> Iterator[Setting]:
    """Yield the sources in their order, because the first source with a value is used."""
    yield ("interval",), duration(telemetry.interval)
    yield ("timeout",), duration(telemetry.timeout)
    yield ("stale_after",), duration(telemetry.stale_after)
    for index, source in enumerate(telemetry.sources):
        optional = {"signal": source.signal, "metric": source.metric, "query": source.query, "unit": source.unit}
        parts = [source.kind, with_digests(source.url), *(f"{key}={value}" for key, value in optional.items() if value)]
        yield ("sources", index), " ".join([*parts, *(f"{key}={value}" for key, value in source.match_labels)])


def _weighting(weighting: p.Weighting) -> Iterator[Setting]:
    yield ("strategy",), weighting.strategy
    yield ("adaptive", "smoothing"), duration(weighting.smoothing)
    for name in ("act_above", "release_below", "across_types"):
        yield ("adaptive", name), percent(getattr(weighting, name))
    yield from nested("composite", (((name,), part) for name, part in weighting.composite))
    yield ("max_step", "down"), percent(weighting.max_step_down)
    yield ("max_step", "up"), percent(weighting.max_step_up)
    for name in ("deadband", "floor", "ceiling"):
        yield (name,), percent(getattr(weighting, name))

"""Resolves pools: replicas with names and capacities, health, and circuit breakers sized for the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from lbctl.base.diagnostics import Path
from lbctl.compile.addresses import OwnAddresses, check_addresses, own_addresses
from lbctl.compile.capacity import capacities, gpu_count, throughputs
from lbctl.compile.context import Context
from lbctl.compile.convert import address, as_int, maybe, pairs
from lbctl.compile.discovery import discovery_of, with_file_targets
from lbctl.compile.pick import pick, queue
from lbctl.compile.replicas import name_of, with_ranks
from lbctl.compile.telemetry import telemetry, weighting
from lbctl.compile.upstream import credentials, tls, upstream
from lbctl.ir import pools as ir
from lbctl.model import pool as model
from lbctl.model.health import Active, Health, Passive

FEW_SLOTS = 64
"""Maximum number of concurrent requests per replica at which a pool counts as having few slots.

docs/develop/weighting-study.md contains the measurements.
"""
IN_FLIGHT = 512
"""Default limit on concurrent requests per replica.

It is twice the default batch size of an engine (vLLM's max_num_seqs is 256), so that the breaker acts as a fuse, not as
a scheduler.
"""

_OF_AGENTS = ir.ActiveCheck(ir.HttpCheck(), interval=2_000, timeout=1_000, unhealthy_threshold=2, healthy_threshold=2)
"""Default agent checks. Values that the pool sets in `active` take precedence."""
_TIMING = ("interval", "timeout", "unhealthy_threshold", "healthy_threshold")
_CLOSES_NOTHING = frozenset({"triton"})
"""Engines that do not close idle connections. Triton's HTTP server has no timeout."""
_EXPORTERS = frozenset({"dcgm", "nvidia_gpu_exporter", "amd", "agent", "prometheus", "custom"})
"""Sources of metrics that are not engines."""


def pools(ctx: Context, limits: Mapping[str, tuple[ir.TokenLimit, ...]]) -> tuple[ir.Pool, ...]:
    """Resolve all pools. `limits` maps each pool to the prompt-token limits of the routes that lead to it."""
    table = throughputs(ctx)
    with_fallback = {pool for route in ctx.fleet.routes.values() if route.fallback for pool in route.pools}
    own = own_addresses(ctx)

    def resolved(name: str, section: model.Pool) -> ir.Pool:
        pool = with_ranks(ctx, name, with_file_targets(ctx, name, section))
        has_fallback, limited = name in with_fallback, limits.get(name, ())
        if pool is not section or pool.discovery or pool.tls:  # these depend on other files or on the machine
            return _pool(ctx, name, pool, table, own, has_fallback, limited)
        return ctx.resolved(
            ("pools", name), pool, (table, own, has_fallback, limited),
            lambda ctx: _pool(ctx, name, pool, table, own, has_fallback, limited),
        )  # fmt: skip

    return tuple(resolved(name, section) for name, section in sorted(ctx.fleet.pools.items()))


def _pool(
    ctx: Context,
    name: str,
    pool: model.Pool,
    table: Mapping[str, float],
    own: OwnAddresses,
    has_fallback: bool,
    limits: tuple[ir.TokenLimit, ...],
) -> ir.Pool:
    """Resolve a pool.

    `has_fallback` is whether a route sends requests to another pool if this one has no healthy replica. `limits`
    contains the prompt-token limits of its routes.
    """
    path = ("pools", name)
    if pool.tls and (pool.tls.certificate is None) != (pool.tls.key is None):
        ctx.error("LB505", "a client certificate needs its key, and the key needs its certificate", (*path, "tls"))
    check_addresses(ctx, name, pool, own)
    _check_agents(ctx, name, pool)
    replicas = _replicas(ctx, name, pool, table)
    discovery = discovery_of(ctx, name, pool.discovery, table)
    api = upstream(ctx, name, pool)
    check = _check(ctx, name, pool.health.active, _ports(replicas, discovery), api.host if api else None)
    return ir.Pool(
        name=name,
        replicas=replicas,
        discovery=discovery,
        protocol=pool.protocol,
        model=maybe(pool.model, lambda item: ir.Model(item.name, item.version, tuple(sorted(item.adapters)))),
        labels=pairs(pool.labels),
        balance=_balance(ctx, name, pool, limits),
        affinity=_affinity(pool.affinity),
        session=_session(ctx, (*path, "affinity"), pool),
        drain_deadline=int(pool.drain_deadline),
        locality=maybe(pool.locality, lambda item: ir.Locality(item.prefer, float(item.spill_below))),
        connections=_connections(pool),
        connect_timeout=int(pool.timeouts.connect),
        queue_timeout=int(pool.timeouts.queue),
        circuit_breaker=_breaker(pool),
        is_limited=bool(pool.circuit_breaker.max_requests or pool.circuit_breaker.max_connections),
        slow_start=_slow_start(ctx, name, pool),
        active=_active(pool.health, check),
        agent=_agent(pool.health, check),
        passive=_passive(pool.health.passive, has_fallback),
        deep=ir.DeepCheck(
            as_int(pool.health.deep.min_free_memory),
            float(pool.health.deep.max_temperature),
            tuple(sorted(pool.health.deep.fatal_xids)),
            int(pool.health.deep.stalled_after),
        ),
        few_slots=_few_slots(pool),
        fail_open=_fail_open(ctx, name, pool.health),
        load_shedding=maybe(
            pool.health.load_shedding, lambda item: ir.LoadShedding(float(item.min_healthy), int(item.retry_after))
        ),
        telemetry=telemetry(pool.telemetry, pool),
        weighting=weighting(pool),
        tls=tls(pool.tls, api),
        upstream=api,
        credentials=credentials(ctx, name, pool),
    )


def _connections(pool: model.Pool) -> ir.Connections:
    """Resolve the connections to the replicas.

    Servers are assumed to close idle connections unless the pool sets `idle: unlimited`, or does not set `idle` and all
    its engines are known to keep connections open.
    """
    section = pool.connections
    sections = (pool.telemetry, *(item.telemetry for item in pool.replicas))
    kinds = {source.kind for item in sections if item for source in item.sources} - _EXPORTERS
    is_known = "idle" not in section.model_fields_set and kinds != set() and kinds <= _CLOSES_NOTHING
    idle = as_int(section.idle)
    return ir.Connections(idle, section.max_requests, closed_by_servers=idle is not None and not is_known)


def _replicas(ctx: Context, pool: str, section: model.Pool, table: Mapping[str, float]) -> tuple[ir.Replica, ...]:
    resolved = capacities(ctx, pool, section, table)
    replicas = [
        _replica(replica, capacity, section) for replica, capacity in zip(section.replicas, resolved, strict=True)
    ]
    _unique(ctx, pool, section, [item.name for item in replicas], "LB104", "name", "give each replica its own name")
    addresses = [str(item.address) for item in replicas]
    _unique(ctx, pool, section, addresses, "LB105", "address", "use each address for one replica")
    return tuple(sorted(replicas, key=lambda item: item.name))


def _unique(ctx: Context, pool: str, section: model.Pool, values: list[str], code: str, noun: str, hint: str) -> None:
    first_index: dict[str, int] = {}
    for index, value in enumerate(values):
        if first_index.setdefault(value, index) != index:
            position = ctx.position(("pools", pool, "replicas", first_index[value]))
            path: Path = ("pools", pool, "replicas", index, *(("ports",) if section.replicas[index].ports else ()))
            ctx.error(code, f"the {noun} {value} is used twice, first at {position}", path, hint)


def _replica(replica: model.Replica, capacity: float, pool: model.Pool) -> ir.Replica:
    return ir.Replica(
        name=name_of(replica),
        address=address(replica.address),
        capacity=capacity,
        priority=replica.priority,
        drain=replica.drain,
        region=replica.region,
        zone=replica.zone,
        gpu=replica.gpu,
        gpu_count=gpu_count(replica),
        devices=tuple(replica.devices),
        labels=pairs(replica.labels) if replica.labels else (),
        telemetry=maybe(replica.telemetry, lambda section: telemetry(section, pool)),
        agent_port=replica.agent_port,
    )


def _affinity(section: model.Affinity | None) -> ir.Affinity | None:
    if section is None or section.cookie is None:
        return None
    return ir.Affinity(section.cookie) if section.ttl is None else ir.Affinity(section.cookie, int(section.ttl))


def _session(ctx: Context, path: Path, pool: model.Pool) -> ir.SessionHeader | None:
    section = pool.affinity
    if section is None or section.header is None:
        return None
    if pool.balance.algorithm == "pick":
        message = "the picker selects a replica for each request, so a session would not stay on its replica"
        ctx.error("LB161", message, (*path, "header"), "use another algorithm", key=True)
    header = section.header
    return ir.SessionHeader(header) if section.ttl is None else ir.SessionHeader(header, int(section.ttl))


def _balance(ctx: Context, name: str, pool: model.Pool, limits: tuple[ir.TokenLimit, ...]) -> ir.Balance:
    section, path = pool.balance, ("pools", name, "balance")
    if section.algorithm == "pick":
        given = section.pick or model.Pick()
        chosen_at = (*path, "pick", "otherwise")
        waiting = maybe(pool.queue, partial(queue, ctx, ("pools", name)))
        policy = replace(pick(ctx, path, given), queue=waiting, token_limits=limits)
        return replace(_own_balance(ctx, path, given.otherwise, section.hash, chosen_at), pick=policy)
    if section.pick is not None:
        ctx.error(
            "LB306", f"`pick` is set, but the algorithm is {section.algorithm}", (*path, "pick"), "algorithm: pick"
        )
    if pool.queue is not None:
        message = f"the queue needs the picker, but the algorithm is {section.algorithm}"
        ctx.error("LB319", message, ("pools", name, "queue"), "balance: {algorithm: pick}", key=True)
    return _own_balance(ctx, path, section.algorithm, section.hash, (*path, "algorithm"))


def _own_balance(
    ctx: Context, path: Path, algorithm: ir.Algorithm, section: model.Hash | None, chosen_at: Path
) -> ir.Balance:
    """Resolve the proxy's own algorithm. `chosen_at` is the path of the key that selects the algorithm."""
    is_picked = chosen_at[-1] == "otherwise"
    key, hint = ("`pick.otherwise`", "pick: {otherwise: hash}") if is_picked else ("the algorithm", "algorithm: hash")
    if algorithm != "hash":
        if section is not None:
            ctx.error("LB301", f"a hash key is set, but {key} is {algorithm}", (*path, "hash"), hint)
        return ir.Balance(algorithm)
    if section is None:
        ctx.error("LB301", f"{key} is hash, but no hash key is set", chosen_at, "hash: {key: {header: x}}")
        return ir.Balance("hash")
    bound = section.bounded_load
    if bound is not None and bound <= 1:
        ctx.error(
            "LB302",
            f"a bounded load of {bound:g} leaves no room for any difference in load",
            (*path, "hash", "bounded_load"),
            "use a number above 1, for example 1.25",
        )
    return ir.Balance("hash", _hash_key(section.key), bound)


def _hash_key(key: model.HashKey) -> ir.HashKey:
    if key.prompt_prefix is not None:
        return ir.HashKey("prompt_prefix", bytes=key.prompt_prefix)
    if key.source_ip is not None:
        return ir.HashKey("source_ip")
    if key.header is not None:
        return ir.HashKey("header", key.header)
    if key.cookie is not None:
        return ir.HashKey("cookie", key.cookie)
    if key.query is not None:
        return ir.HashKey("query", key.query)
    return ir.HashKey("json_body", key.json_body or "")


def _breaker(pool: model.Pool) -> ir.CircuitBreaker:
    """Resolve the circuit breaker.

    Only requests that did not reach a replica are retried, so a retry adds no work. After a replica is lost, every
    request may need a retry until the replica is ejected. For this reason, as many retries as requests are allowed. The
    same applies to pending requests, because Envoy also counts requests that are only waiting for a connection to open,
    and a burst on cold connections consists of such requests.
    """
    given, replicas = pool.circuit_breaker, _breaker_replicas(pool)
    requests = given.max_requests or replicas * (given.per_replica.max_requests or IN_FLIGHT)
    return ir.CircuitBreaker(
        max_connections=given.max_connections or replicas * (given.per_replica.max_connections or IN_FLIGHT),
        max_pending_requests=given.max_pending_requests or requests,
        max_requests=requests,
        max_retries=given.max_retries or requests,
        replica_max_connections=given.per_replica.max_connections,
        replica_max_requests=given.per_replica.max_requests,
    )


def _few_slots(pool: model.Pool) -> bool:
    """Whether the limit per replica is a number of slots.

    A higher limit, which can be reached only with batching, acts as a fuse.
    """
    slots = pool.circuit_breaker.per_replica.max_requests
    return slots is not None and slots <= FEW_SLOTS


def _breaker_replicas(pool: model.Pool) -> int:
    """Return the number of replicas used to size a breaker.

    The result is the number of replicas, including drained ones, rounded up to a power of two. A breaker is part of
    Envoy's cluster, and Envoy closes all connections to a pool when its cluster changes. With this rounding, a drain
    never changes the cluster, and an additional replica rarely does. The result is at most twice the required size,
    which is acceptable for a fuse.
    """
    if pool.discovery and pool.discovery.dns:
        return pool.discovery.dns.max_replicas
    if pool.discovery and pool.discovery.kubernetes:
        return pool.discovery.kubernetes.max_replicas
    return 1 << (max(1, len(pool.replicas)) - 1).bit_length()


def _slow_start(ctx: Context, name: str, pool: model.Pool) -> ir.SlowStart | None:
    if pool.balance.algorithm == "hash" and pool.slow_start is not None:
        ctx.warn("LB303", "slow start has no effect with a hash ring", ("pools", name, "slow_start"))
    return _resolved_slow_start(pool)


def _resolved_slow_start(pool: model.Pool) -> ir.SlowStart | None:
    """Resolve slow start.

    Slow start is enabled by default, except with hash, because every key would move if the ring kept changing for a
    minute.
    """
    if pool.balance.algorithm == "hash":
        return None
    section = pool.slow_start or model.SlowStart()
    return ir.SlowStart(int(section.window), float(section.min_weight), section.aggression)


def with_algorithm(pool: ir.Pool, written: model.Pool, algorithm: str) -> ir.Pool:
    """Return the pool with the weighting, slow start and telemetry implied by another algorithm.

    `written` is the pool as it was written. The balance itself does not change.
    """
    balance = written.balance.model_copy(update={"algorithm": algorithm})
    other = written.model_copy(update={"balance": balance})
    return replace(
        pool,
        slow_start=_resolved_slow_start(other),
        telemetry=telemetry(other.telemetry, other),
        weighting=weighting(other),
    )


def _ports(replicas: Iterable[ir.Replica], discovery: ir.Discovery | None) -> set[int]:
    """Return the ports on which the pool's replicas serve requests."""
    ports = {replica.address.port for replica in replicas}
    return ports | {discovery.port} if isinstance(discovery, ir.DnsDiscovery) else ports


def _check(ctx: Context, pool: str, section: Active | None, ports: set[int], host: str | None) -> ir.ActiveCheck | None:
    """Resolve the checks in `active`. `host` is the host of a hosted API.

    If the port equals every replica's own port, it is omitted, so that checks use the same protocol options as
    requests.
    """
    if section is None:
        return None
    is_explicit = "timeout" in section.model_fields_set
    timeout = section.timeout if is_explicit else min(section.timeout, section.interval)
    if timeout > section.interval:
        ctx.error(
            "LB304", f"a check can take {timeout}, but the next check starts after {section.interval}",
            ("pools", pool, "health", "active", "timeout"), "set a timeout that is at most the interval",
        )  # fmt: skip
    return ir.ActiveCheck(
        probe=_probe(section, host),
        port=None if ports == {section.port} else section.port,
        interval=int(section.interval),
        timeout=int(timeout),
        jitter=float(section.jitter),
        unhealthy_threshold=section.unhealthy_threshold,
        healthy_threshold=section.healthy_threshold,
    )


def _active(health: Health, check: ir.ActiveCheck | None) -> ir.ActiveCheck | None:
    """Return the proxies' active checks. With agents, these checks query the agents, with the timing set in the files.

    A threshold above the default is included in the request, because during a drain an agent waits until its clients
    have noticed it.
    """
    if health.agent is None:
        return check
    if check is None or health.active is None:
        return replace(_OF_AGENTS, port=health.agent.port)
    written = health.active.model_fields_set
    timing = {name: getattr(check if name in written else _OF_AGENTS, name) for name in _TIMING}
    if "interval" not in written:
        timing["interval"] = max(timing["interval"], timing["timeout"])
    timing["timeout"] = min(timing["timeout"], timing["interval"])
    threshold = timing["unhealthy_threshold"]
    stated = f"?{ir.THRESHOLD_PARAMETER}={threshold}" if threshold > _OF_AGENTS.unhealthy_threshold else ""
    return replace(check, probe=ir.HttpCheck(f"/health{stated}"), port=health.agent.port, **timing)


def _agent(health: Health, check: ir.ActiveCheck | None) -> ir.AgentCheck | None:
    if health.agent is None:
        return None
    return ir.AgentCheck(health.agent.port, check.probe, check.port) if check else ir.AgentCheck(health.agent.port)


def _check_agents(ctx: Context, name: str, pool: model.Pool) -> None:
    """Report replicas that cannot have an agent, and an agent's port without `health.agent` (LB169)."""
    path = ("pools", name)
    if pool.health.agent is None:
        for index, replica in enumerate(pool.replicas):
            if replica.agent_port is not None:
                message = "`agent_port` is set, but the pool has no `health.agent`"
                replica_path = (*path, "replicas", index, "agent_port")
                ctx.error("LB169", message, replica_path, "health: {agent: {port: 9500}}", key=True)
        return
    if pool.upstream is not None:
        message = "the servers of a hosted API have no agent"
        ctx.error("LB169", message, (*path, "health", "agent"), "set `agent` only in pools with agents", key=True)
    for index, replica in enumerate(pool.replicas):
        if replica.address.path:
            message = "proxies cannot check the agent of this replica, because a socket has no host"
            ctx.error("LB169", message, (*path, "replicas", index, "address"), "use a host and a port")


def _fail_open(ctx: Context, pool: str, health: Health) -> bool:
    """Resolve `fail_open`, which requires active checks. Reports LB309 if `load_shedding` is also set."""
    if health.fail_open and health.load_shedding is not None:
        ctx.error(
            "LB309", "if no replica is healthy, `fail_open` sends requests and `load_shedding` rejects them",
            ("pools", pool, "health", "fail_open"), "keep one of the two", key=True,
        )  # fmt: skip
    return health.fail_open and (health.active is not None or health.agent is not None)


def _probe(section: Active, host: str | None) -> ir.HttpCheck | ir.GrpcCheck | ir.TcpCheck:
    if section.http is not None:
        http = section.http
        return ir.HttpCheck(http.path, http.host or host, tuple(sorted(set(http.statuses))), http.body_contains or None)
    return ir.GrpcCheck(section.grpc.service) if section.grpc is not None else ir.TcpCheck()


def _passive(section: Passive, has_fallback: bool) -> ir.PassiveCheck:
    """Resolve passive checks.

    By default, half of a pool is never ejected, because nothing else would serve its requests. A pool with a fallback
    can be ejected completely.
    """
    is_explicit = "max_ejection" in section.model_fields_set
    return ir.PassiveCheck(
        consecutive_5xx=section.consecutive_5xx,
        consecutive_connect_failures=section.consecutive_connect_failures,
        error_percent=float(section.error_rate.percent),
        error_window=int(section.error_rate.window),
        error_min_requests=section.error_rate.min_requests,
        ejection_time=int(section.ejection_time),
        max_ejection=100.0 if has_fallback and not is_explicit else float(section.max_ejection),
        is_5xx_written="consecutive_5xx" in section.model_fields_set,
    )

"""A pool as an `upstream`: its replicas, their weights and the backups.

nginx has two ranks, servers and `backup`, and does not support backups with hash and random. If a route may use a pool
only in some regions, the replicas there form a separate upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, HashKey, Pool, Replica
from lbctl.ir.routes import Forward
from lbctl.ir.shares import in_regions
from lbctl.ir.weight import Weight
from lbctl.targets import locality, replica_token, replica_weights
from lbctl.targets.nginx import busy, limits, names, quote
from lbctl.targets.nginx.blocks import UpstreamBlock, UpstreamServer
from lbctl.targets.nginx.forward import FOREVER
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.replica_weights import quantise, rounded, rounding_error
from lbctl.targets.token import Token

_MAX_WEIGHT = 1000
_MAX_HASHED_WEIGHT = 100
"""Maximum weight in a consistent hash, which has 160 points per unit of weight."""
_HAS_RESOLVER = (1, 27, 3)
_HAS_STICKY = (1, 29, 6)
_HAS_LEAST_TIME = (1, 31)
_UNLIMITED = 1_000_000
_SINGLE_ZONE = 64
"""Shared memory, in KiB, of an upstream with one replica."""


@dataclass(frozen=True, slots=True)
class PooledReplica:
    """A replica in an upstream."""

    replica: Replica
    weight: int
    """Weight, at least 1."""
    rank: int | None
    """Rank of the replica. 0: it receives requests. 1: it receives requests if no member of rank 0 is available. None:
    it receives no requests."""


@dataclass(slots=True)
class Upstreams:
    """The upstreams that routes use, by pool and regions, each built when first used."""

    context: RenderContext
    built: dict[tuple[str, tuple[str, ...]], UpstreamBlock | None] = field(default_factory=dict)
    singles: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, UpstreamBlock], ...]] = field(default_factory=dict)
    """Maps each (pool, regions) pair to the name and upstream of each replica that may be picked."""

    def of(self, pool: str, regions: tuple[str, ...] = ()) -> UpstreamBlock | None:
        """Return the upstream for `pool`, restricted to `regions` if there are any.

        Return None if no replica receives requests.
        """
        key = (pool, regions)
        if key not in self.built:
            count = sum(1 for name, within in self.built if within and name == pool)
            name = f"within{count}_{pool}" if regions else f"pool_{pool}"
            own_name = names.own(name, self.context.view.proxy)
            settings = self.context.view.pools[pool]
            if busy.attempts_of_pool(self.context.view, settings):
                settings = replace(settings, passive=None)
            self.built[key] = _upstream(self.context, settings, own_name, regions)
        return self.built[key]

    def size(self, pool: str, regions: tuple[str, ...]) -> int:
        """Return the number of replicas in the upstream that receive requests."""
        upstream = self.of(pool, regions)
        return (
            len({item.address for item in upstream.servers if Token("down") not in item.parameters}) if upstream else 0
        )

    def replicas(self, name: str, regions: tuple[str, ...]) -> tuple[tuple[str, UpstreamBlock], ...]:
        """Return the pool's replicas that may be picked in these regions, each as a separate upstream."""
        key, pool = (name, regions), self.context.view.pools[name]
        if key not in self.singles:
            prefix = names.own(f"pick{len(self.singles)}_", self.context.view.proxy)
            members = [] if isinstance(pool.discovery, DnsDiscovery) else _members(self.context, pool, regions)
            fit = [item.replica for item in members if item.rank is not None]
            more = busy.attempts_of_pool(self.context.view, pool)
            self.singles[key] = tuple(
                (item.name, _single(pool, (fit[index:] + fit[:index])[: more + 1], prefix + item.name))
                for index, item in enumerate(fit)
            )
        return self.singles[key]

    @property
    def all(self) -> tuple[UpstreamBlock, ...]:
        """Return the upstreams built so far, ordered by pool and regions."""
        pools = (upstream for _, upstream in sorted(self.built.items()) if upstream is not None)
        return (*pools, *(upstream for singles in self.singles.values() for _, upstream in singles))


def _upstream(context: RenderContext, pool: Pool, name: str, regions: tuple[str, ...]) -> UpstreamBlock | None:
    if isinstance(pool.discovery, DnsDiscovery):
        return None if regions else _discovered(context, pool, pool.discovery, name)
    members = _members(context, pool, regions)
    if all(item.rank is None for item in members):
        return None
    ejectable = _ejectable(pool, members)
    lines = [(item, _failures(pool, is_ejectable=item.replica.name in ejectable)) for item in members]
    if panics(pool) and all(item.rank in (0, None) for item in members) and len(ejectable) > 1:
        # Listed again, as backups that are never ejected: they serve while all others are ejected.
        lines += [(replace(item, rank=1), [Token("max_fails=0")]) for item in members if item.rank == 0]
    servers = tuple(
        _server(pool, item, (*failures, *_limit(pool), *_sticky_name(context, pool, item.replica)))
        for item, failures in lines
    )
    return _block(context, pool, name, servers, resolver=None)


def _single(pool: Pool, replicas: Sequence[Replica], name: str) -> UpstreamBlock:
    """Return the upstream of the first replica.

    The other replicas receive requests when the first one is busy. Replicas are not ejected.
    """
    common = (Token("max_fails=0"), *_limit(pool))
    servers = tuple(_server(pool, PooledReplica(item, 1, min(rank, 1)), common) for rank, item in enumerate(replicas))
    return UpstreamBlock(
        name=quote.plain(name),
        zone=_SINGLE_ZONE,
        method=None,
        servers=servers,
        keepalive=32,
        keepalive_timeout=_idle(pool),
        keepalive_requests=pool.connections.max_requests or _UNLIMITED,
        resolver=None,
        sticky=None,
    )


def _idle(pool: Pool) -> int:
    """Return the time for which an idle connection is kept, in milliseconds."""
    return max(1, FOREVER if pool.connections.idle is None else pool.connections.idle)


def _block(
    context: RenderContext, pool: Pool, name: str, servers: tuple[UpstreamServer, ...], resolver: Token | None
) -> UpstreamBlock:
    return UpstreamBlock(
        name=Token(name, ("pools", pool.name)),
        zone=_zone(max(len(servers), 1)),
        method=_method(context, pool),
        servers=servers,
        keepalive=max(32, min(1024, pool.circuit_breaker.max_connections)),
        keepalive_timeout=_idle(pool),
        keepalive_requests=pool.connections.max_requests or _UNLIMITED,
        resolver=resolver,
        sticky=_sticky(context, pool) if _has_sticky(context, pool) else _sessions(context, pool, name),
    )


def _discovered(context: RenderContext, pool: Pool, discovery: DnsDiscovery, name: str) -> UpstreamBlock:
    path = ("pools", pool.name, "discovery", "dns", "name")
    address = quote.plain(str(Address(discovery.name, discovery.port)), path)
    is_ejectable = pool.passive is not None and (pool.passive.max_ejection >= 100 or panics(pool))
    parameters = [*_failures(pool, is_ejectable=is_ejectable), *_limit(pool)]
    again = [Token("max_fails=0"), *_limit(pool), Token("backup")]
    resolver = None
    if context.version >= _HAS_RESOLVER and discovery.resolvers:
        parameters.append(Token("resolve"))
        again.append(Token("resolve"))
        seconds = max(1, discovery.refresh // 1000)
        resolver = Token(" ".join(map(str, discovery.resolvers)) + f" valid={seconds}s", (*path[:-1], "resolvers"))
    elif context.version >= _HAS_RESOLVER:
        context.warn(
            "pool.discovery.dns",
            path[:-1],
            "nginx re-resolves a name only if resolvers are configured: this name is resolved only at start",
            'set them: resolvers: ["10.96.0.10:53"]',
        )
    servers = tuple(
        UpstreamServer(address, tuple(item)) for item in ((parameters, again) if panics(pool) else (parameters,))
    )
    upstream = _block(context, pool, name, servers, resolver)
    return upstream if resolver is None else _with_zone_for(upstream, len(servers) * discovery.max_replicas)


def _with_zone_for(upstream: UpstreamBlock, replicas: int) -> UpstreamBlock:
    return replace(upstream, zone=_zone(replicas))


def _zone(replicas: int) -> int:
    """Return the shared memory that an upstream needs, in KiB: about two per server, in steps of 64."""
    return -(-(96 + replicas * 2) // 64) * 64


def _members(context: RenderContext, pool: Pool, regions: tuple[str, ...]) -> list[PooledReplica]:
    drained = context.view.drained[pool.name]
    weighted = list(zip(pool.replicas, context.view.weights[pool.name], strict=True))
    allowed = [(r, w) for r, w in weighted if in_regions(r, regions)]
    eligible = [(r, w) for r, w in allowed if r.name not in drained]
    weights = dict(zip((r.name for r, _ in eligible), _whole_weights(context, pool, eligible), strict=True))
    ranks = _ranks(context, pool, [r for r, _ in eligible])
    return [PooledReplica(r, weights.get(r.name, 1), ranks.get(r.name)) for r, _ in allowed]


def _whole_weights(context: RenderContext, pool: Pool, eligible: list[tuple[Replica, Weight]]) -> list[int]:
    weights = [weight for _, weight in eligible]
    shares, whole = target_shares(pool, weights), nginx_weights(pool, weights)
    context.diagnostics += rounded("nginx", pool, [replica for replica, _ in eligible], rounding_error(shares, whole))
    return whole


def target_shares(pool: Pool, weights: Sequence[Weight]) -> tuple[float, ...]:
    """Return the shares that nginx's weights are proportional to."""
    if pool.balance.algorithm in ("round_robin", "random") or _hashes(pool):
        return replica_weights.rates(weights)
    return replica_weights.in_flight(weights, few_slots=pool.few_slots)


def nginx_weights(pool: Pool, weights: Sequence[Weight]) -> list[int]:
    """Return nginx's weights for the replicas that receive requests, in the order of `weights`."""
    if not _hashes(pool):
        return quantise(target_shares(pool, weights), _MAX_WEIGHT)
    whole = quantise(target_shares(pool, weights), _MAX_HASHED_WEIGHT)
    divisor = gcd(*whole)
    return [item // divisor for item in whole]


def _hashes(pool: Pool) -> bool:
    return pool.balance.algorithm == "hash" and pool.balance.key is not None and pool.balance.key.kind in _KEYS


def _ranks(context: RenderContext, pool: Pool, eligible: list[Replica]) -> dict[str, int | None]:
    """Return each replica's rank, by priority first and then by distance.

    The best rank receives requests, and the other ranks are backups.
    """
    order = {replica.name: locality.rank(replica, pool, context.view.proxy) for replica in eligible}
    levels = sorted(set(order.values()))
    if len(levels) < 2:
        return dict.fromkeys(order, 0)
    if _hashes(pool) or pool.balance.algorithm == "random":
        return _without_backup(context, pool, order)
    _warn_about_ranks(context, pool, levels)
    return {name: 0 if level == levels[0] else 1 for name, level in order.items()}


def _without_backup(context: RenderContext, pool: Pool, order: dict[str, tuple[int, int]]) -> dict[str, int | None]:
    best = min(priority for priority, _ in order.values())
    if any(priority > best for priority, _ in order.values()):
        context.warn(
            "pool.replicas.priority",
            ("pools", pool.name, "balance", "algorithm"),
            f"nginx has no backup servers with {pool.balance.algorithm}: replicas with a lower priority receive no "
            "requests",
            "move them to a separate pool, and set it as the route's fallback",
        )
    if pool.locality is not None:
        context.warn(
            "pool.locality",
            ("pools", pool.name, "locality"),
            f"nginx has no backup servers with {pool.balance.algorithm}: all zones receive requests equally",
        )
    return {name: 0 if priority == best else None for name, (priority, _) in order.items()}


def _warn_about_ranks(context: RenderContext, pool: Pool, levels: list[tuple[int, int]]) -> None:
    if len(levels) < 3:
        return
    if len({priority for priority, _ in levels}) > 1:
        context.warn(
            "pool.replicas.priority",
            ("pools", pool.name, "replicas"),
            "nginx has a single rank of backup servers: all priorities after the first form one rank of backups",
        )
    else:
        context.warn(
            "pool.locality",
            ("pools", pool.name, "locality"),
            "nginx has a single rank of backup servers: if no replica in its zone is left, its region and all other "
            "regions share requests by weight",
            "set prefer: region, or move the replicas of nginx's region to a separate pool with a fallback",
        )


def _server(pool: Pool, member: PooledReplica, common: tuple[Token, ...]) -> UpstreamServer:
    replica = member.replica
    path = ("pools", pool.name, "replicas", replica.name)
    parameters = [Token(f"weight={member.weight}"), *common]
    if member.rank is None:
        parameters.append(Token("down"))
    elif member.rank:
        parameters.append(Token("backup"))
    return UpstreamServer(quote.plain(str(replica.address), path), tuple(parameters))


def panics(pool: Pool) -> bool:
    """Return whether all replicas serve again after failures have ejected all of them.

    nginx cannot limit the number of ejected replicas, and it also counts requests that a replica has received and
    aborted. A single client whose requests make replicas abort could eject the whole pool for all clients.
    """
    return pool.passive is not None and 0 < pool.passive.max_ejection < 100 and _has_backups(pool)


def _has_backups(pool: Pool) -> bool:
    return not _hashes(pool) and pool.balance.algorithm != "random"


def _ejectable(pool: Pool, members: list[PooledReplica]) -> frozenset[str]:
    """Return the replicas that nginx may eject after failures.

    If backups are available (standbys, or the replicas listed again), all replicas may be ejected. Without backups,
    only the first replicas may be ejected, up to the number that `max_ejection` allows. If a failing replica is not
    ejected, each of its requests needs another attempt.
    """
    if pool.passive is None:
        return frozenset()
    used = [item for item in members if item.rank is not None]
    if any(item.rank for item in used):
        return frozenset(item.replica.name for item in used if item.rank == 0)
    if panics(pool) and len(used) > 1:
        return frozenset(item.replica.name for item in used)
    return frozenset(item.replica.name for item in used[: int(len(used) * pool.passive.max_ejection / 100)])


def _failures(pool: Pool, *, is_ejectable: bool) -> list[Token]:
    if pool.passive is None or not is_ejectable:
        return [Token("max_fails=0")]
    seconds = max(1, -(-pool.passive.ejection_time // 1000))
    return [Token(f"max_fails={pool.passive.consecutive_connect_failures}"), Token(f"fail_timeout={seconds}s")]


def _limit(pool: Pool) -> list[Token]:
    most = limits.most_of_replica(pool)
    return [Token(f"max_conns={most}")] if most else []


def _method(context: RenderContext, pool: Pool) -> Token | None:
    balance = pool.balance
    path = ("pools", pool.name, "balance", "algorithm")
    if balance.algorithm == "round_robin":
        return None
    if balance.algorithm == "random":
        return Token("random", path)
    if balance.algorithm == "least_time" and context.version >= _HAS_LEAST_TIME:
        return Token("least_time header", path)
    if balance.key is not None and _hashes(pool):
        return Token(f"hash {_key(context, pool, balance.key)} consistent", (*path[:-1], "hash", "key"))
    return Token("least_conn", path)


_KEYS = ("header", "cookie", "query", "source_ip")


def _key(context: RenderContext, pool: Pool, key: HashKey) -> str:
    """Return the variable that is hashed.

    A request without the key goes to any replica. Hashing the empty string would send all of these requests to the same
    replica.
    """
    if key.kind == "source_ip":
        return "$remote_addr"
    variable_of = {"header": names.header, "cookie": context.lookups.cookie, "query": context.lookups.query}
    variable = variable_of[key.kind](key.name)
    if variable is None:
        path = ("pools", pool.name, "balance", "hash", "key", "header")
        context.warn(
            "pool.balance.hash", path, "nginx drops request headers with this name, so requests are distributed evenly"
        )
        return "$request_id"
    entries = ((Token("default"), Token(variable)), (Token('""'), Token("$request_id")))
    return context.map(variable, f"$lb_h{len(context.maps)}", entries)


def _has_sticky(context: RenderContext, pool: Pool) -> bool:
    return pool.affinity is not None and context.version >= _HAS_STICKY


def _sticky_name(context: RenderContext, pool: Pool, replica: Replica) -> tuple[Token, ...]:
    """Return a replica's cookie value. By default, nginx uses the MD5 of the address, which can be guessed."""
    name = replica_token.word(pool.name, replica.name)
    return (Token(f"route={name}"),) if _has_sticky(context, pool) else ()


def _sticky(context: RenderContext, pool: Pool) -> Token:
    assert pool.affinity is not None
    seconds = max(1, pool.affinity.ttl // 1000)
    path = ("pools", pool.name, "affinity", "cookie")
    name = quote.plain(pool.affinity.cookie, path).text
    secure = " secure" if replica_token.for_https_alone(pool.name, context.view) else ""
    return Token(f"cookie {name} expires={seconds}s path=/ httponly samesite=lax{secure}", path)


def _sessions(context: RenderContext, pool: Pool, upstream: str) -> Token | None:
    """Return the directive with which nginx learns the sessions that replicas assign; None if it learns none."""
    if pool.session is None or context.version < _HAS_STICKY:
        return None
    path = ("pools", pool.name, "affinity", "header")
    header = names.header(pool.session.name)
    if header is None:
        context.warn("pool.affinity.header", path, "nginx drops headers with this name, so sessions are not supported")
        return None
    created, seconds = header.replace("$http_", "$upstream_http_", 1), max(1, pool.session.ttl // 1000)
    zone = f"zone={upstream}_sessions:1m"
    return Token(f"learn create={created} lookup={header} {zone} timeout={seconds}s header", path)


def shown(address: Address) -> str | None:
    """Return the address as it appears in nginx's log.

    Return None for a host name, because the log contains the resolved address.
    """
    if address.path:
        return f"unix:{address.path}"
    return str(address) if is_ip(address.host) else None


def warn_about_fallback_limits(context: RenderContext) -> None:
    """Warn about fallback pools whose circuit breaker is not enforced.

    nginx counts a request only once, in the location of its first pool. `max_conns` always applies, to each line of an
    upstream.
    """
    routes = [(route, route.action) for route in context.view.routes.values() if isinstance(route.action, Forward)]
    fallbacks = {item.fallback for _, item in routes if item.fallback and set(item.pools) != {item.fallback}}
    for pool in (context.view.pools[name] for name in sorted(fallbacks)):
        replicas, each = len(pool.replicas), limits.most_of_replica(pool)
        is_in_one_line = replicas == 1 or not panics(pool)
        is_in_one_upstream = pool.balance.pick is None and not any(
            route.regions for route, action in routes if pool.name in (*action.pools, action.fallback)
        )
        is_held = each and 0 < replicas * each <= limits.most(pool) and is_in_one_line and is_in_one_upstream
        if pool.is_limited and not is_held:
            context.warn(
                "pool.circuit_breaker",
                ("pools", pool.name, "circuit_breaker"),
                f"nginx counts a request only in its first pool: as a fallback, {pool.name} may receive more requests "
                "than its limit",
                "use limits that also apply to fallbacks: `per_replica`, with `max_ejection: 100%` in `health.passive`",
            )

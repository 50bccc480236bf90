"""A pool as an `upstream`: which replicas are in it, with which weight, and which of them only stand by.

nginx knows two ranks, servers and `backup`, and the second not beside hash and random. A pool that a route may use only
in some regions is an upstream of its own, without the replicas elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, HashKey, Pool, Replica
from lbctl.ir.weight import Weight
from lbctl.targets import effective_weights, locality
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.blocks import Server, Upstream
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.quantise import quantise, rounding_error
from lbctl.targets.rounding import rounded
from lbctl.targets.token import Token

_HIGHEST = 1000
_HIGHEST_HASHED = 100
"""A consistent hash has 160 points for each unit of weight."""
_RESOLVES = (1, 27, 3)
_STICKS = (1, 29, 6)
_KNOWS_TIMES = (1, 31)
_UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class Member:
    """A replica in an upstream. `rank`: 0 gets requests, 1 when no 0 is left, None nothing."""

    replica: Replica
    weight: int
    rank: int | None


@dataclass(slots=True)
class Upstreams:
    """The upstreams that routes have asked for, by pool and regions."""

    book: RenderContext
    made: dict[tuple[str, tuple[str, ...]], Upstream | None] = field(default_factory=dict)

    def of(self, pool: str, regions: tuple[str, ...] = ()) -> Upstream | None:
        """The upstream for `pool`, within `regions` where some are given; None if no replica takes requests."""
        key = (pool, regions)
        if key not in self.made:
            wanted = sum(1 for name, within in self.made if within and name == pool)
            name = f"within{wanted}_{pool}" if regions else f"pool_{pool}"
            self.made[key] = _upstream(self.book, self.book.view.pools[pool], name, regions)
        return self.made[key]

    def size(self, pool: str, regions: tuple[str, ...]) -> int:
        """How many of its replicas take requests."""
        found = self.of(pool, regions)
        return sum(1 for item in found.servers if Token("down") not in item.parameters) if found else 0

    @property
    def all(self) -> tuple[Upstream, ...]:
        return tuple(found for _, found in sorted(self.made.items()) if found is not None)


def _upstream(book: RenderContext, pool: Pool, name: str, regions: tuple[str, ...]) -> Upstream | None:
    if isinstance(pool.discovery, DnsDiscovery):
        return None if regions else _discovered(book, pool, pool.discovery, name)
    members = _members(book, pool, regions)
    if all(item.rank is None for item in members):
        return None
    always = (*_failures(pool), *_limit(pool))
    servers = tuple(_server(pool, item, always) for item in members)
    return _block(book, pool, name, servers, resolver=None)


def _block(book: RenderContext, pool: Pool, name: str, servers: tuple[Server, ...], resolver: Token | None) -> Upstream:
    connections = pool.connections
    sticks = pool.affinity is not None and book.version >= _STICKS
    return Upstream(
        name=Token(name, ("pools", pool.name)),
        zone=_zone(max(len(servers), 1)),
        method=_method(book, pool),
        servers=servers,
        keepalive=max(32, min(1024, pool.circuit_breaker.max_connections)),
        keepalive_timeout=max(1, connections.idle),
        keepalive_requests=connections.max_requests or _UNLIMITED,
        resolver=resolver,
        sticky=_sticky(pool) if sticks else None,
    )


def _discovered(book: RenderContext, pool: Pool, discovery: DnsDiscovery, name: str) -> Upstream:
    path = ("pools", pool.name, "discovery", "dns", "name")
    address = quote.plain(str(Address(discovery.name, discovery.port)), path)
    parameters = [*_failures(pool), *_limit(pool)]
    resolver = None
    if book.version >= _RESOLVES and discovery.resolvers:
        parameters.append(Token("resolve"))
        seconds = max(1, discovery.refresh // 1000)
        resolver = Token(" ".join(map(str, discovery.resolvers)) + f" valid={seconds}s", (*path[:-1], "resolvers"))
    elif book.version >= _RESOLVES:
        book.warn(
            "pool.discovery.dns",
            path[:-1],
            "nginx resolves a name again only by resolvers of its own: here it is resolved when nginx starts",
            'name them: resolvers: ["10.96.0.10:53"]',
        )
    servers = (Server(address, tuple(parameters)),)
    upstream = _block(book, pool, name, servers, resolver)
    return upstream if resolver is None else _grown(upstream, discovery.max_replicas)


def _grown(upstream: Upstream, replicas: int) -> Upstream:
    return replace(upstream, zone=_zone(replicas))


def _zone(replicas: int) -> int:
    """KiB of shared memory: about one for each server, in steps of 64."""
    return -(-(96 + replicas * 2) // 64) * 64


def _members(book: RenderContext, pool: Pool, regions: tuple[str, ...]) -> list[Member]:
    drained = book.view.drained[pool.name]
    weighed = list(zip(pool.replicas, book.view.weights[pool.name], strict=True))
    here = [(r, w) for r, w in weighed if not regions or (r.region is not None and r.region in regions)]
    fit = [(r, w) for r, w in here if r.name not in drained]
    weights = dict(zip((r.name for r, _ in fit), _whole(book, pool, fit), strict=True))
    ranks = _ranks(book, pool, [r for r, _ in fit])
    return [Member(r, weights.get(r.name, 1), ranks.get(r.name)) for r, _ in here]


def _whole(book: RenderContext, pool: Pool, fit: list[tuple[Replica, Weight]]) -> list[int]:
    weights = [weight for _, weight in fit]
    shares, whole = meant(pool, weights), nginx_weights(pool, weights)
    book.findings += rounded("nginx", pool, [replica for replica, _ in fit], rounding_error(shares, whole))
    return whole


def meant(pool: Pool, weights: Sequence[Weight]) -> tuple[float, ...]:
    """What the weights of nginx are in proportion to."""
    if pool.balance.algorithm in ("round_robin", "random") or _hashes(pool):
        return effective_weights.rates(weights)
    return effective_weights.in_flight(weights, few_slots=pool.few_slots)


def nginx_weights(pool: Pool, weights: Sequence[Weight]) -> list[int]:
    """Of the replicas that take requests."""
    if not _hashes(pool):
        return quantise(meant(pool, weights), _HIGHEST)
    whole = quantise(meant(pool, weights), _HIGHEST_HASHED)
    divisor = gcd(*whole)
    return [item // divisor for item in whole]


def _hashes(pool: Pool) -> bool:
    return pool.balance.algorithm == "hash" and pool.balance.key is not None and pool.balance.key.kind in _KEYS


def _ranks(book: RenderContext, pool: Pool, fit: list[Replica]) -> dict[str, int | None]:
    """Priority first, then how near the replica is; the best rank serves, the others stand by."""
    order = {replica.name: locality.rank(replica, pool, book.view.proxy) for replica in fit}
    levels = sorted(set(order.values()))
    if len(levels) < 2:
        return dict.fromkeys(order, 0)
    if _hashes(pool) or pool.balance.algorithm == "random":
        return _without_backup(book, pool, order)
    _tell(book, pool, levels)
    return {name: 0 if level == levels[0] else 1 for name, level in order.items()}


def _without_backup(book: RenderContext, pool: Pool, order: dict[str, tuple[int, int]]) -> dict[str, int | None]:
    best = min(priority for priority, _ in order.values())
    if any(priority > best for priority, _ in order.values()):
        book.warn(
            "pool.replicas.priority",
            ("pools", pool.name, "balance", "algorithm"),
            f"nginx has no backup servers beside {pool.balance.algorithm}: replicas of a lower priority get nothing",
            "give them a pool of their own, and name it as the route's fallback",
        )
    if pool.locality is not None:
        book.warn(
            "pool.locality",
            ("pools", pool.name, "locality"),
            f"nginx has no backup servers beside {pool.balance.algorithm}: all zones are used alike",
        )
    return {name: 0 if priority == best else None for name, (priority, _) in order.items()}


def _tell(book: RenderContext, pool: Pool, levels: list[tuple[int, int]]) -> None:
    if len(levels) < 3:
        return
    if len({priority for priority, _ in levels}) > 1:
        book.warn(
            "pool.replicas.priority",
            ("pools", pool.name, "replicas"),
            "nginx has one rank of backup servers: all but the first stand by together",
        )
    else:
        book.warn(
            "pool.locality",
            ("pools", pool.name, "locality"),
            "nginx has one rank of backup servers: when none of its own zone is left, its own region and all others "
            "share by weight",
            "prefer: region, or the own region's replicas in a pool of their own with a fallback",
        )


def _server(pool: Pool, member: Member, always: tuple[Token, ...]) -> Server:
    replica = member.replica
    path = ("pools", pool.name, "replicas", replica.name)
    parameters = [Token(f"weight={member.weight}"), *always]
    if member.rank is None:
        parameters.append(Token("down"))
    elif member.rank:
        parameters.append(Token("backup"))
    return Server(quote.plain(str(replica.address), path), tuple(parameters))


def _failures(pool: Pool) -> list[Token]:
    if pool.passive is None:
        return [Token("max_fails=0")]
    seconds = max(1, -(-pool.passive.ejection_time // 1000))
    return [Token(f"max_fails={pool.passive.consecutive_connect_failures}"), Token(f"fail_timeout={seconds}s")]


def _limit(pool: Pool) -> list[Token]:
    breaker = pool.circuit_breaker
    limits = [item for item in (breaker.replica_max_connections, breaker.replica_max_requests) if item]
    return [Token(f"max_conns={min(limits)}")] if limits else []


def _method(book: RenderContext, pool: Pool) -> Token | None:
    balance = pool.balance
    path = ("pools", pool.name, "balance", "algorithm")
    if balance.algorithm == "round_robin":
        return None
    if balance.algorithm == "random":
        return Token("random", path)
    if balance.algorithm == "least_time" and book.version >= _KNOWS_TIMES:
        return Token("least_time header", path)
    if balance.key is not None and _hashes(pool):
        return Token(f"hash {_key(book, pool, balance.key)} consistent", (*path[:-1], "hash", "key"))
    return Token("least_conn", path)


_KEYS = ("header", "cookie", "query", "source_ip")


def _key(book: RenderContext, pool: Pool, key: HashKey) -> str:
    """A request without the key goes anywhere: to hash the empty string would send all of them to one replica."""
    if key.kind == "source_ip":
        return "$remote_addr"
    found = {"header": names.header, "cookie": book.lookups.cookie, "query": book.lookups.query}[key.kind](key.name)
    if found is None:
        path = ("pools", pool.name, "balance", "hash", "key", "header")
        book.warn("pool.balance.hash", path, "nginx drops request headers of that name: requests are spread evenly")
        return "$request_id"
    entries = ((Token("default"), Token(found)), (Token('""'), Token("$request_id")))
    return book.map(found, f"$lb_h{len(book.maps)}", entries)


def _sticky(pool: Pool) -> Token:
    assert pool.affinity is not None
    seconds = max(1, pool.affinity.ttl // 1000)
    path = ("pools", pool.name, "affinity", "cookie")
    name = quote.plain(pool.affinity.cookie, path).text
    return Token(f"cookie {name} expires={seconds}s path=/ httponly samesite=lax", path)


def shown(address: Address) -> str | None:
    """The address as nginx's log names it; None for a host name, of which the log shows what it resolved to."""
    if address.path:
        return f"unix:{address.path}"
    return str(address) if is_ip(address.host) else None

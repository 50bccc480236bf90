"""The replicas of a pool as servers: weight, limits, checks, priority, drain, TLS."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.pools import DnsDiscovery, Pool, PoolTls, Replica, SlowStart
from lbctl.ir.weight import Weight
from lbctl.targets import effective_weights, replica_token
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import agents, health, locality_tiers, quote
from lbctl.targets.haproxy.locality_tiers import Part
from lbctl.targets.haproxy.quote import line
from lbctl.targets.quantise import quantise, rounding_error
from lbctl.targets.rounding import rounded
from lbctl.targets.token import Token

MAX_WEIGHT = 256
_RAMP = (SlowStart().min_weight, SlowStart().aggression)
"""What a ramp is where the fleet says no more than its window."""


def servers(part: Part) -> tuple[Token, ...]:
    pool, weights = part.pool, quantise(shares_of(part), MAX_WEIGHT)
    ids, backups = ids_of(pool), locality_tiers.backups(pool)
    lines = [default(pool)]
    for replica, weight in zip(pool.replicas, weights, strict=True):
        lines.append(server(part, replica, 0 if _drained(part, replica) else weight, ids, backups))
    return (*lines, *_template(pool))


def remarks(part: Part) -> Iterator[Diagnostic]:
    """What its servers cannot say of the pool."""
    pool, shares = part.pool, shares_of(part)
    errors = rounding_error(shares, quantise(shares, MAX_WEIGHT)) if shares else []
    yield from rounded("HAProxy", pool, pool.replicas, errors)
    yield from _straight(pool)


def shares_of(part: Part) -> tuple[float, ...]:
    """What the weights of the file are in proportion to. An agent gives percents of them: then they stay."""
    if part.view.proxy.agent_check:
        return tuple(item.capacity for item in part.pool.replicas)
    return meant(part.pool, part.view.weights[part.pool.name])


def meant(pool: Pool, weights: tuple[Weight, ...]) -> tuple[float, ...]:
    """What the weights of HAProxy are in proportion to."""
    if pool.balance.algorithm in ("least_request", "least_time"):
        return effective_weights.in_flight(weights, few_slots=pool.few_slots)
    return effective_weights.rates(weights)


def haproxy_weights(pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
    return quantise(meant(pool, weights), MAX_WEIGHT)


def _drained(part: Part, replica: Replica) -> bool:
    """By its weight. What an agent has drained it must be able to bring back, and a percent of 0 is 0."""
    if part.view.proxy.agent_check:
        return replica.drain
    return replica.name in part.view.drained[part.pool.name]


def default(pool: Pool) -> Token:
    """What all servers of the pool share."""
    return line(
        "default-server",
        *health.server_words(pool),
        *_maxconn(pool),
        *_slow_start(pool),
        *_protocol(pool),
        "init-addr libc,none",
    )


def server(part: Part, replica: Replica, weight: int, ids: Mapping[str, int], backups: Collection[str]) -> Token:
    """One line; `weight` 0: drained. `ids`: of `ids_of`; `backups`: of `levels.backups`."""
    pool, path = part.pool, ("pools", part.pool.name, "replicas", replica.name)
    return line(
        "server",
        quote.name(replica.name),
        quote.address(replica.address),
        f"weight {weight}",
        f"id {ids[replica.name]}" if ids else "",
        "backup" if replica.name in backups else "",
        *_tracked(part, replica),
        *health.own_words(pool),
        *_agent(part, replica),
        f"cookie {replica_token.word(pool.name, replica.name)}" if pool.affinity and weight else "",
        *(_tls(pool.tls, replica.address.host) if pool.tls else ()),
        source=path,
    )


def _tracked(part: Part, replica: Replica) -> Iterator[str]:
    home = part.homes.get(replica.name)
    if home is not None and (part.pool.active or part.pool.passive):
        yield f"no-check track pool_{home}/{quote.name(replica.name).text}"


def _agent(part: Part, replica: Replica) -> Iterator[str]:
    """A tracked server follows another one's state, and no agent's weight: each copy asks for itself."""
    place = part.agents.get((part.pool.name, replica.name))
    if place is not None:
        asked = quote.word(agents.question(part.pool.name, replica)).text
        yield f"agent-check agent-addr {place.host} agent-port {place.port} agent-inter {agents.INTERVAL}ms"
        yield f'agent-send {asked}"\\n"'


def limit(pool: Pool) -> int | None:
    """Requests at once on one replica. A connection carries one in HTTP/1; in HTTP/2 only the requests count."""
    breaker = pool.circuit_breaker
    limits = [breaker.replica_max_requests]
    if pool.protocol == "http1":
        limits.append(breaker.replica_max_connections)
    return min((item for item in limits if item is not None), default=None)


def _maxconn(pool: Pool) -> Iterator[str]:
    each = limit(pool)
    if each is not None:
        yield f"maxconn {each}"


def _slow_start(pool: Pool) -> Iterator[str]:
    if pool.slow_start and pool.balance.algorithm != "hash":
        yield f"slowstart {pool.slow_start.window}ms"


def _protocol(pool: Pool) -> Iterator[str]:
    if pool.protocol == "http1":
        return
    yield "alpn h2 check-alpn h2" if pool.tls else "proto h2"
    yield f"pool-purge-delay {max(1, pool.connections.idle // 2)}ms"
    if pool.connections.max_requests is not None:
        yield f"max-reuse {max(0, pool.connections.max_requests - 1)}"


def _tls(settings: PoolTls, host: str) -> Iterator[str | Token]:
    """The name that the certificate must hold: the one given, else the address where that is a name. HAProxy cannot
    compare an IP address with a certificate."""
    known = settings.server_name or (host if host and not is_ip(host) else None)
    yield "ssl"
    if settings.ca is None:
        yield "verify none"
    else:
        yield "verify required ca-file"
        yield quote.word(settings.ca)
    if known:
        yield "sni"
        yield quote.word(quote.sample("str", known))
        yield "check-sni"
        yield quote.word(known)
        if settings.ca is not None:
            yield "verifyhost"
            yield quote.word(known)
    if settings.certificate:
        yield "crt"
        yield quote.word(settings.certificate)


def ids_of(pool: Pool) -> dict[str, int]:
    """For a hash, a server's place on the ring: by its name, so that it stays when others come and go."""
    if pool.balance.algorithm != "hash":
        return {}
    ids: dict[str, int] = {}
    for replica in sorted(pool.replicas, key=lambda item: item.name):
        wanted = int.from_bytes(hashlib.sha256(replica.name.encode()).digest()[:4]) % 0x7FFFFFFE + 1
        while wanted in ids.values():
            wanted += 1
        ids[replica.name] = wanted
    return ids


def _template(pool: Pool) -> Iterator[Token]:
    """Discovery without a control plane: HAProxy resolves the name by itself."""
    if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas:
        found = pool.discovery
        yield line(
            f"server-template r {found.max_replicas}",
            quote.word(f"{found.name}:{found.port}"),
            f"resolvers dns_{quote.name(pool.name).text} init-addr none",
            *health.own_words(pool),
            *(_tls(pool.tls, found.name) if pool.tls else ()),
            source=("pools", pool.name, "discovery"),
        )


def _straight(pool: Pool) -> Iterator[Diagnostic]:
    told = pool.slow_start
    if told and pool.balance.algorithm != "hash" and (told.min_weight, told.aggression) != _RAMP:
        yield Diagnostic(
            BY_ID["pool.slow_start"].code,
            "HAProxy's ramp is straight and starts near nothing: min_weight and aggression do not count",
            path=("pools", pool.name, "slow_start"),
            severity="warning",
        )

"""The replicas of a pool as servers: weight, limits, checks, priority, drain, TLS."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.pools import DnsDiscovery, Pool, PoolTls, Replica, SlowStart
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets import replica_token, replica_weights
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import agents, health, locality_tiers, quote, retries, sections, slots
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.haproxy.quote import line
from lbctl.targets.replica_weights import quantise, rounded, rounding_error
from lbctl.targets.token import Token

MAX_WEIGHT = 256
_DEFAULT_RAMP = (SlowStart().min_weight, SlowStart().aggression)
"""Initial weight and exponent of a ramp for which the fleet sets no more than the window."""


def servers(part: TierBackend) -> tuple[Token, ...]:
    """Return the server lines of one backend."""
    pool, weights = part.pool, quantise(shares_of(part), MAX_WEIGHT)
    ids, backups = ids_of(pool), locality_tiers.backups(pool)
    lines = [default(part)]
    for replica, weight in zip(pool.replicas, weights, strict=True):
        lines.append(server(part, replica, 0 if _is_drained(part, replica) else weight, ids, backups))
    return (*lines, *(slot(part, name) for name in slots.names(part)), *_server_template(pool, part.view.proxy))


def diagnostics(part: TierBackend) -> Iterator[Diagnostic]:
    """Yield the pool settings that a backend's servers do not support."""
    pool, shares = part.pool, shares_of(part)
    errors = rounding_error(shares, quantise(shares, MAX_WEIGHT)) if shares else []
    yield from rounded("HAProxy", pool, pool.replicas, errors)
    yield from _slow_start_diagnostics(pool)
    yield from health.diagnostics(pool, part.size)


def shares_of(part: TierBackend) -> tuple[float, ...]:
    """Return the shares that the weights in the file are proportional to.

    An agent responds with percentages of these shares. With agents, the shares are therefore the capacities, which do
    not change.
    """
    if part.view.proxy.agent_check:
        return tuple(item.capacity for item in part.pool.replicas)
    return target_shares(part.pool, part.view.weights[part.pool.name])


def target_shares(pool: Pool, weights: tuple[Weight, ...]) -> tuple[float, ...]:
    """Return the shares that HAProxy's weights are proportional to."""
    if pool.balance.algorithm in ("least_request", "least_time"):
        return replica_weights.in_flight(weights, few_slots=pool.few_slots)
    return replica_weights.rates(weights)


def haproxy_weights(pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
    """Return HAProxy's weights for the replicas of `pool`, given their `weights`, in the same order."""
    return quantise(target_shares(pool, weights), MAX_WEIGHT)


def _is_drained(part: TierBackend, replica: Replica) -> bool:
    """Return whether the replica has the weight 0.

    If an agent sets the weights, only a drain configured in the fleet counts. The agent must be able to readmit a
    replica that it has drained itself, and any percentage of 0 is 0.
    """
    if part.view.proxy.agent_check:
        return replica.drain
    return replica.name in part.view.drained[part.pool.name]


def default(part: TierBackend) -> Token:
    """Return the `default-server` line: the arguments that all servers in the backend share."""
    pool = part.pool
    retried = retries.number(pool, routes_of(pool, part.view))
    return line(
        "default-server",
        *health.default_server_arguments(pool, part.size, retried),
        *_maxconn(pool),
        *_slow_start(pool),
        *_protocol(pool),
        "init-addr libc,none",
    )


def routes_of(pool: Pool, view: View) -> list[Route]:
    """Return the routes that may send requests to the pool."""
    return [
        route for route in view.routes.values() if isinstance(route.action, Forward) and pool.name in route.action.pools
    ]


def server(part: TierBackend, replica: Replica, weight: int, ids: Mapping[str, int], backups: Collection[str]) -> Token:
    """Return one server line. Weight 0 means drained.

    `ids` comes from `ids_of`, and `backups` from `locality_tiers.backups`.
    """
    pool, path = part.pool, ("pools", part.pool.name, "replicas", replica.name)
    return line(
        "server",
        quote.name(replica.name),
        quote.address(replica.address),
        f"weight {weight}",
        "disabled" if pool.balance.pick and not weight else "",
        f"id {ids[replica.name]}" if ids else "",
        "backup" if replica.name in backups else "",
        *_track(part, replica),
        *health.server_arguments(pool, replica),
        *_agent(part, replica, weight),
        f"cookie {replica_token.word(pool.name, replica.name)}" if pool.affinity and weight else "",
        *(_tls(pool.tls, replica.address.host) if pool.tls else ()),
        source=path,
    )


def slot(part: TierBackend, name: str) -> Token:
    """Return the line of a spare slot: a server in maintenance with the settings that all replicas of the pool share.

    The address, the weight and the replica of a slot are set at run time. Like every server added at run time, it has
    no agent check; its health check queries the same agent.
    """
    pool = part.pool
    return line(
        "server",
        name,
        slots.NOWHERE,
        "weight 1",
        *health.server_arguments(pool),
        f"cookie {replica_token.word(pool.name, name)}" if pool.affinity else "",
        *(_tls(pool.tls, "") if pool.tls else ()),
        "disabled",
        source=("pools", pool.name),
    )


def _track(part: TierBackend, replica: Replica) -> Iterator[str]:
    home = part.homes.get(replica.name)
    if home is not None and (part.pool.active or part.pool.passive):
        yield f"no-check track {sections.pool(home, part.view.proxy)}/{quote.name(replica.name).text}"


def _agent(part: TierBackend, replica: Replica, weight: int) -> Iterator[str]:
    """Yield the arguments of the agent check.

    Every copy of a replica has its own agent check: a server that tracks another follows its health, but not its agent
    weight. A drained replica is not checked by the agent next to it, because the response would end the drain.
    """
    place = part.agents.get((part.pool.name, replica.name))
    if place is not None:
        question = quote.word(agents.question(part.pool.name, replica)).text
        yield f"agent-check agent-addr {place.host} agent-port {place.port} agent-inter {agents.INTERVAL}ms"
        yield f'agent-send {question}"\\n"'
    elif weight:
        yield from health.agent_arguments(part.pool, part.view.proxy, replica)


def limit(pool: Pool) -> int | None:
    """Return the concurrency limit of one replica, or None.

    An HTTP/1 connection carries one request; with HTTP/2, only the request limit counts.
    """
    breaker = pool.circuit_breaker
    limits = [breaker.replica_max_requests]
    if pool.protocol == "http1":
        limits.append(breaker.replica_max_connections)
    return min((item for item in limits if item is not None), default=None)


def _maxconn(pool: Pool) -> Iterator[str]:
    maximum = limit(pool)
    if maximum is not None:
        yield f"maxconn {maximum}"


def _ramp(pool: Pool) -> SlowStart | None:
    """Return the slow start of the pool's servers; None with hashing, where a growing weight would move keys."""
    return None if pool.balance.algorithm == "hash" else pool.slow_start


def _slow_start(pool: Pool) -> Iterator[str]:
    ramp = _ramp(pool)
    if ramp:
        yield f"slowstart {ramp.window}ms"


def _protocol(pool: Pool) -> Iterator[str]:
    if pool.protocol == "http1":
        return
    yield "alpn h2 check-alpn h2" if pool.tls else "proto h2"
    if pool.connections.idle is not None:
        yield f"pool-purge-delay {max(1, pool.connections.idle // 2)}ms"
    if pool.connections.max_requests is not None:
        yield f"max-reuse {max(0, pool.connections.max_requests - 1)}"


def _tls(settings: PoolTls, host: str) -> Iterator[str | Token]:
    """Yield the TLS arguments.

    The certificate must contain `server_name`, or else the host if that is a name. HAProxy cannot verify an IP address
    in a certificate.
    """
    server_name = settings.server_name or (host if host and not is_ip(host) else None)
    yield "ssl"
    if settings.ca is None:
        yield "verify none"
    else:
        yield "verify required ca-file"
        yield quote.word(settings.ca)
    if server_name:
        yield "sni"
        yield quote.word(quote.sample("str", server_name))
        yield "check-sni"
        yield quote.word(server_name)
        if settings.ca is not None:
            yield "verifyhost"
            yield quote.word(server_name)
    if settings.certificate:
        yield "crt"
        yield quote.word(settings.certificate)


def ids_of(pool: Pool) -> dict[str, int]:
    """Map each replica to its server ID for a pool that uses hashing; otherwise, return an empty map.

    The ID determines a server's position on the hash ring. It depends only on the name, so it does not change when
    other replicas are added or removed.
    """
    if pool.balance.algorithm != "hash":
        return {}
    ids: dict[str, int] = {}
    for replica in sorted(pool.replicas, key=lambda item: item.name):
        server_id = int.from_bytes(hashlib.sha256(replica.name.encode()).digest()[:4]) % 0x7FFFFFFE + 1
        while server_id in ids.values():
            server_id += 1
        ids[replica.name] = server_id
    return ids


def _server_template(pool: Pool, proxy: Proxy) -> Iterator[Token]:
    """Yield the line that makes HAProxy resolve the name itself, for discovery without a control plane."""
    if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas:
        discovery = pool.discovery
        yield line(
            f"server-template r {discovery.max_replicas}",
            quote.word(f"{discovery.name}:{discovery.port}"),
            f"resolvers {sections.own(f'dns_{quote.name(pool.name).text}', proxy)} init-addr none",
            *health.server_arguments(pool),
            *health.agent_arguments(pool, proxy),
            *(_tls(pool.tls, discovery.name) if pool.tls else ()),
            source=("pools", pool.name, "discovery"),
        )


def _slow_start_diagnostics(pool: Pool) -> Iterator[Diagnostic]:
    ramp = _ramp(pool)
    if ramp and (ramp.min_weight, ramp.aggression) != _DEFAULT_RAMP:
        yield Diagnostic(
            BY_ID["pool.slow_start"].code,
            "HAProxy's slow-start ramp is linear and starts near 0: min_weight and aggression have no effect",
            path=("pools", pool.name, "slow_start"),
            severity="warning",
        )

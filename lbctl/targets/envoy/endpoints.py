"""The replicas of a pool as a `ClusterLoadAssignment`: order of priority and nearness, weights, drain.

A replica's name travels as the endpoint's hostname: the access log names replicas by it, and nothing is resolved from
it. Weights are whole numbers from 1 on; a drained replica keeps its weight and is marked DRAINING.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from envoy.config.core.v3 import base_pb2, health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from google.protobuf import wrappers_pb2

from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.weight import Weight
from lbctl.targets import effective_weights, locality
from lbctl.targets.envoy import affinity
from lbctl.targets.envoy.protos import metadata
from lbctl.targets.quantise import quantise, rounding_error

_MAXIMUM = 2**24
"""The largest weight: squares of unlike capacities need the range."""
_SUM = 2**32 - 1
"""The largest sum of weights."""
_SPILL_BELOW = 70.0
_EXACT = 100
"""With which Envoy looks at the share of fit replicas as soon as one is missing: shedding needs that."""
_STRICT = 100_000
"""Overprovisioning with which the next priority gets nothing while one replica of this one is fit."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How the replicas of one cluster are laid out: which regions are allowed (empty: all), whether the next rank
    waits until none is left (`strict`: a fallback pool stands behind), whether the pool sheds by itself; `secure`:
    clients come by HTTPS alone."""

    regions: tuple[str, ...] = ()
    strict: bool = False
    sheds: bool = False
    secure: bool = False


Hosts = Callable[[str], Sequence[str]]
"""The host of a replica's address → what Envoy is to be told in its place."""


def as_written(host: str) -> Sequence[str]:
    """Envoy looks names up by itself."""
    return (host,)


class Layout:
    """The replicas of one cluster where they are to be, their weights still to come. Another weight is written over
    the last: that costs a tenth of laying out anew."""

    def __init__(
        self, name: str, pool: Pool, drained: frozenset[str], proxy: Proxy, placement: Placement, hosts: Hosts,
        out: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """`out`: those of `drained` that their own clients leave too. A replica whose host has several addresses is an
        endpoint for each; one whose host has none is left out."""
        self._pool = pool
        self._message = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
        self._slots: list[tuple[wrappers_pb2.UInt32Value, int, int]] = []
        near = [locality.rank(replica, pool, proxy) for replica in pool.replicas]
        inside = [allowed(item, placement.regions) for item in pool.replicas]
        ranks = sorted({rank for rank, fits in zip(near, inside, strict=True) if fits})
        mark = metadata({"pool": pool.name})
        groups = {
            rank: self._message.endpoints.add(priority=number, metadata=mark).lb_endpoints
            for number, rank in enumerate(ranks)
        }
        taken: set[tuple[str, int]] = set()
        for index, (replica, rank, fits) in enumerate(zip(pool.replicas, near, inside, strict=True)):
            places = _places(replica.address, hosts, taken) if fits else ()
            for where in places:
                endpoint = groups[rank].add()
                _fill(endpoint, pool, replica, where, placement)
                _hold(endpoint, replica, drained, out)
                self._slots.append((endpoint.load_balancing_weight, index, len(places)))
        factor = _overprovisioning(pool, len(ranks), placement)
        if factor:
            self._message.policy.overprovisioning_factor.value = factor

    @property
    def unweighed(self) -> endpoint_pb2.ClusterLoadAssignment:
        """The message, with the last weights or none; not to be changed."""
        return self._message

    def weighed(self, weights: tuple[Weight, ...]) -> endpoint_pb2.ClusterLoadAssignment:
        """The message with these weights, which stand beside the replicas; the addresses of one host share its
        weight. It is good until the next call."""
        whole = envoy_weights(self._pool, weights)
        for slot, index, parts in self._slots:
            slot.value = whole[index] if parts == 1 else max(1, round(whole[index] / parts))
        return self._message


def allowed(replica: Replica, regions: tuple[str, ...]) -> bool:
    return not regions or replica.region in regions


def envoy_weights(pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
    return _quantised(_meant(pool, weights))


@lru_cache(maxsize=64)
def _quantised(meant: tuple[float, ...]) -> list[int]:
    return quantise(meant, min(_MAXIMUM, _SUM // max(1, len(meant))))


def rounding(pool: Pool, weights: tuple[Weight, ...]) -> list[float]:
    """For each replica how far its share is off, as a part of that share."""
    return rounding_error(_meant(pool, weights), envoy_weights(pool, weights))


def _meant(pool: Pool, weights: tuple[Weight, ...]) -> tuple[float, ...]:
    if pool.balance.algorithm in ("least_request", "least_time"):
        return effective_weights.deadlines(weights, few_slots=pool.few_slots)
    return effective_weights.rates(weights)


def _places(where: Address, hosts: Hosts, taken: set[tuple[str, int]]) -> Sequence[Address]:
    """Of two replicas in one place Envoy would see the first alone."""
    if where.path:
        return (where,)
    fresh = [host for host in hosts(where.host) if (host, where.port) not in taken]
    taken.update((host, where.port) for host in fresh)
    return [where if host == where.host else Address(host, where.port) for host in fresh]


def _fill(
    endpoint: endpoint_pb2.LbEndpoint,
    pool: Pool,
    replica: Replica,
    where: Address,
    placement: Placement,
) -> None:
    body = endpoint.endpoint
    if where.path:
        body.address.pipe.path = where.path
    else:
        socket = body.address.socket_address
        socket.address, socket.port_value = where.host, where.port
    if pool.active and pool.active.port is not None:
        body.health_check_config.port_value = pool.active.port
    body.hostname = replica.name
    told = affinity.mark(pool, replica, secure=placement.secure)
    if told:
        endpoint.metadata.CopyFrom(base_pb2.Metadata(**metadata(told)))


def _hold(endpoint: endpoint_pb2.LbEndpoint, replica: Replica, drained: frozenset[str], out: frozenset[str]) -> None:
    if replica.name in out:
        endpoint.health_status = health_check_pb2.UNHEALTHY
    elif replica.name in drained:
        endpoint.health_status = health_check_pb2.DRAINING


def ask(assignment: endpoint_pb2.ClusterLoadAssignment, dns: DnsDiscovery, port: int | None) -> None:
    """Adds the name itself, for an Envoy that asks for its addresses; `port` of the health check."""
    body = assignment.endpoints.add().lb_endpoints.add().endpoint
    body.address.socket_address.address, body.address.socket_address.port_value = dns.name, dns.port
    if port is not None:
        body.health_check_config.port_value = port


def _overprovisioning(pool: Pool, ranks: int, placement: Placement) -> int:
    """100 × 100 ÷ the percentage of fit replicas below which the next rank takes a part; 0: Envoy's own."""
    if placement.strict:
        return _STRICT
    if placement.sheds:
        return _EXACT
    if ranks < 2:
        return 0
    spill_below = pool.locality.spill_below if pool.locality else _SPILL_BELOW
    return math.ceil(10_000 / max(spill_below, 10_000 / _STRICT))

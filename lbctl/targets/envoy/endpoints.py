"""The replicas of a pool as a `ClusterLoadAssignment`: priorities, localities, weights and drains.

An endpoint's hostname is the replica's name. The access log uses this name, and Envoy never resolves it. Weights are
positive integers. A drained replica keeps its weight and is marked DRAINING.

With `fail_open`, Envoy uses all replicas in panic mode, including drained ones. For this reason, drained replicas have
a weight of 1, and all others have weights in the millions. If all replicas are drained, the assignment drops every
request.
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
from lbctl.ir.shares import in_regions
from lbctl.ir.weight import Weight
from lbctl.targets import locality, replica_weights
from lbctl.targets.envoy import affinity, hosted
from lbctl.targets.envoy.protos import metadata
from lbctl.targets.replica_weights import quantise, rounding_error

_MAXIMUM = 2**24
"""Maximum weight. This range is needed for squared capacities that differ widely."""
_SUM = 2**32 - 1
"""Maximum sum of weights that Envoy accepts."""
_SPILL_BELOW = 70.0
_EXACT = 100
"""Overprovisioning factor that makes Envoy react to the first unhealthy replica, as load shedding requires."""
_STRICT = 100_000
"""Overprovisioning factor that gives the next priority no requests while this priority has a healthy replica."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The layout of the replicas of one cluster.

    `regions` lists the allowed regions; empty means all. With `strict`, the next priority gets requests only when this
    one has no healthy replica, because a fallback pool follows. `sheds`: whether the cluster sheds load itself.
    `secure`: whether all clients use HTTPS.
    """

    regions: tuple[str, ...] = ()
    strict: bool = False
    sheds: bool = False
    secure: bool = False


Hosts = Callable[[str], Sequence[str]]
"""Maps the host in a replica's address to the hosts in Envoy's configuration."""


def as_written(host: str) -> Sequence[str]:
    """Return the host itself, because Envoy resolves the host names in a static configuration."""
    return (host,)


class EndpointLayout:
    """The endpoints of one cluster. The weights of these endpoints are filled in later.

    New weights overwrite the previous ones, which takes a tenth of the time needed to create a new layout.
    """

    def __init__(
        self, name: str, pool: Pool, drained: frozenset[str], proxy: Proxy, placement: Placement, hosts: Hosts,
        out: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Prepare the pool's replicas for the proxy.

        Replicas in `out`, a subset of `drained`, are marked UNHEALTHY, so that sticky clients also leave them. A
        replica whose host has several addresses becomes one endpoint for each address. A replica whose host has no
        address is omitted.
        """
        self._pool = pool
        self._message = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
        self._slots: list[tuple[wrappers_pb2.UInt32Value, int, int]] = []
        replica_ranks = [locality.rank(replica, pool, proxy) for replica in pool.replicas]
        inside = [in_regions(item, placement.regions) for item in pool.replicas]
        ranks = sorted({rank for rank, fits in zip(replica_ranks, inside, strict=True) if fits})
        pool_metadata = metadata({"pool": pool.name})
        groups = {
            rank: self._message.endpoints.add(priority=number, metadata=pool_metadata).lb_endpoints
            for number, rank in enumerate(ranks)
        }
        self._idle = drained if pool.fail_open else frozenset()
        if pool.fail_open and all(item.name in drained for item in pool.replicas):
            self._message.policy.drop_overloads.add(category="drained").drop_percentage.numerator = 100
        used: set[tuple[str, int]] = set()
        for index, (replica, rank, fits) in enumerate(zip(pool.replicas, replica_ranks, inside, strict=True)):
            addresses = _addresses(replica.address, hosts, used) if fits else ()
            for address in addresses:
                endpoint = groups[rank].add()
                _fill(endpoint, pool, replica, address, placement)
                _mark_unavailable(endpoint, replica, drained, out)
                self._slots.append((endpoint.load_balancing_weight, index, len(addresses)))
        factor = _overprovisioning(pool, len(ranks), placement)
        if factor:
            self._message.policy.overprovisioning_factor.value = factor

    @property
    def unweighed(self) -> endpoint_pb2.ClusterLoadAssignment:
        """Return the message with the most recent weights, or without weights. The caller must not change it."""
        return self._message

    def weighed(self, weights: tuple[Weight, ...]) -> endpoint_pb2.ClusterLoadAssignment:
        """Return the message with these weights, one per replica of the pool.

        The addresses of one host share its weight. The message is valid until the next call.
        """
        quantised = envoy_weights(self._pool, weights)
        for slot, index, count in self._slots:
            weight = 1 if self._pool.replicas[index].name in self._idle else quantised[index]
            slot.value = weight if count == 1 else max(1, round(weight / count))
        return self._message


def envoy_weights(pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
    """Return the integer weights that Envoy uses for these weights of the pool's replicas, in the same order."""
    return _quantised_weights(_target_weights(pool, weights), large=pool.fail_open)


@lru_cache(maxsize=64)
def _quantised_weights(targets: tuple[float, ...], *, large: bool) -> list[int]:
    maximum = min(_MAXIMUM, _SUM // max(1, len(targets)))
    quantised = quantise(targets, maximum)
    factor = maximum // max(quantised, default=1) if large else 1
    return [weight * factor for weight in quantised]


def rounding(pool: Pool, weights: tuple[Weight, ...]) -> list[float]:
    """Return the relative error of each replica's share that is caused by rounding the weights."""
    return rounding_error(_target_weights(pool, weights), envoy_weights(pool, weights))


def _target_weights(pool: Pool, weights: tuple[Weight, ...]) -> tuple[float, ...]:
    if pool.balance.algorithm in ("least_request", "least_time"):
        return replica_weights.deadlines(weights, few_slots=pool.few_slots)
    return replica_weights.rates(weights)


def _addresses(address: Address, hosts: Hosts, used: set[tuple[str, int]]) -> Sequence[Address]:
    """Return the addresses of a replica that no earlier replica uses.

    Envoy would use only the first of two equal addresses.
    """
    if address.path:
        return (address,)
    new_hosts = [host for host in hosts(address.host) if (host, address.port) not in used]
    used.update((host, address.port) for host in new_hosts)
    return [address if host == address.host else Address(host, address.port) for host in new_hosts]


def _fill(
    endpoint: endpoint_pb2.LbEndpoint,
    pool: Pool,
    replica: Replica,
    address: Address,
    placement: Placement,
) -> None:
    fields = endpoint.endpoint
    if address.path:
        fields.address.pipe.path = address.path
    else:
        socket = fields.address.socket_address
        socket.address, socket.port_value = address.host, address.port
    check_port = pool.check_port(replica)
    if check_port is not None:
        fields.health_check_config.port_value = check_port
    fields.hostname = replica.name
    marks = {**affinity.endpoint_metadata(pool, replica, secure=placement.secure), **_hosted(pool)}
    if marks:
        endpoint.metadata.CopyFrom(base_pb2.Metadata(**metadata(marks)))


def _hosted(pool: Pool) -> dict[str, str]:
    return {hosted.CHOSEN: pool.name} if pool.sent else {}


def _mark_unavailable(
    endpoint: endpoint_pb2.LbEndpoint, replica: Replica, drained: frozenset[str], out: frozenset[str]
) -> None:
    if replica.name in out:
        endpoint.health_status = health_check_pb2.UNHEALTHY
    elif replica.name in drained:
        endpoint.health_status = health_check_pb2.DRAINING


def add_dns_name(assignment: endpoint_pb2.ClusterLoadAssignment, dns: DnsDiscovery, pool: Pool) -> None:
    """Add the host name as an endpoint, for an Envoy that resolves host names."""
    port, endpoint = pool.active.port if pool.active else None, assignment.endpoints.add().lb_endpoints.add()
    fields = endpoint.endpoint
    if pool.sent:
        endpoint.metadata.CopyFrom(base_pb2.Metadata(**metadata(_hosted(pool))))
    fields.address.socket_address.address, fields.address.socket_address.port_value = dns.name, dns.port
    if port is not None:
        fields.health_check_config.port_value = port


def _overprovisioning(pool: Pool, ranks: int, placement: Placement) -> int:
    """Return the overprovisioning factor, or 0 for Envoy's default.

    The factor is 10,000 divided by the percentage of healthy replicas below which part of the requests goes to the next
    priority.
    """
    if placement.strict:
        return _STRICT
    if placement.sheds:
        return _EXACT
    if ranks < 2:
        return 0
    spill_below = pool.locality.spill_below if pool.locality else _SPILL_BELOW
    return math.ceil(10_000 / max(spill_below, 10_000 / _STRICT))

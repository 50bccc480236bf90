"""Replicas that are not behind a Service of the cluster, as ServiceEntries."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lbctl.base.hosts import is_ip
from lbctl.ir.pools import DnsDiscovery, Pool, Replica
from lbctl.ir.weight import Weight
from lbctl.targets.istio.destination_rule import LEAST_REQUEST, algorithm
from lbctl.targets.istio.failover import Failover
from lbctl.targets.manifests.objects import Tree
from lbctl.targets.replica_weights import deadlines, quantise, rates, rounding_error

PORT = 80
"""Port of every ServiceEntry. The endpoints have the replicas' ports."""
MAX_ENDPOINTS = 4096
_MAX_WEIGHT = 2**24
_MAX_SUM = 2**32 - 1
"""Maximum sum of a pool's weights that Envoy accepts."""
_PORT_NAME = "http"
_PROTOCOLS = {"http1": "HTTP", "http2": "HTTP2", "grpc": "GRPC"}
_LABEL = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)

Member = tuple[Replica, Weight]


def endpoint_weights(pool: Pool, weights: Sequence[Weight]) -> list[int]:
    """Return the endpoint weights for the replicas of `pool`, given their `weights`, in the same order."""
    targets = _targets(pool, weights)
    return quantise(targets, min(_MAX_WEIGHT, _MAX_SUM // max(1, len(targets))))


def rounding(pool: Pool, weights: Sequence[Weight]) -> list[float]:
    """Return the relative error of each replica's share that is caused by rounding the weights."""
    return rounding_error(_targets(pool, weights), endpoint_weights(pool, weights))


def _targets(pool: Pool, weights: Sequence[Weight]) -> tuple[float, ...]:
    if algorithm(pool) == LEAST_REQUEST:
        return deadlines(weights, few_slots=pool.few_slots)
    return rates(weights)


def spec(host: str, pool: Pool, members: Sequence[Member], failover: Failover) -> Tree:
    """Return the specification of a ServiceEntry.

    `members` are the replicas that receive requests, with their weights. A weight of 0 would count as 1, so `members`
    must not contain drained replicas.
    """
    weights = endpoint_weights(pool, [weight for _, weight in members])
    endpoints = [
        _endpoint(replica.address.host, replica.address.port, weight, _labels(replica, failover))
        for (replica, _), weight in zip(members, weights, strict=True)
    ]
    if isinstance(pool.discovery, DnsDiscovery) and not pool.replicas:
        endpoints = [_endpoint(pool.discovery.name, pool.discovery.port, None, {})]
    by_name = not all(is_ip(str(endpoint["address"])) for endpoint in endpoints)
    return {
        "hosts": [host],
        "location": "MESH_EXTERNAL",
        "resolution": "DNS" if by_name else "STATIC",
        "ports": [{"name": _PORT_NAME, "number": PORT, "protocol": _PROTOCOLS[pool.protocol]}],
        **({"endpoints": endpoints} if endpoints else {}),
    }


def _endpoint(host: str, port: int, weight: int | None, labels: dict[str, str]) -> Tree:
    tree: Tree = {"address": host, "ports": {_PORT_NAME: port}}
    if weight is not None:
        tree["weight"] = weight
    return {**tree, "labels": dict(sorted(labels.items()))} if labels else tree


def _labels(replica: Replica, failover: Failover) -> dict[str, str]:
    """Return an endpoint's labels: its name, which identifies the replica in Istio's metrics, and its rank."""
    name = {"app.kubernetes.io/name": replica.name} if _LABEL.fullmatch(replica.name) else {}
    return {**name, **failover.labels(replica)}

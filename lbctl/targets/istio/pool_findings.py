"""Pool settings that Istio cannot express, although it supports each feature by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.base.hosts import is_loopback
from lbctl.ir.pools import DnsDiscovery, KubernetesDiscovery, Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, Route, busy_statuses_of_pool
from lbctl.ir.snapshot import View
from lbctl.targets.istio.destination_rule import MIN_AGGRESSION, consistent_hash, is_uneven, traffic_policy
from lbctl.targets.istio.failover import failover
from lbctl.targets.istio.service_entry import MAX_ENDPOINTS, Member, rounding
from lbctl.targets.manifests.findings import assumed_port, same_services, warning
from lbctl.targets.manifests.pool_classes import Group
from lbctl.targets.replica_weights import rounded

_SPILL_BELOW = 70.0
"""Default of `spill_below`, close to 72 %, which follows from Envoy's overprovisioning factor. Istio does not set that
factor."""


def diagnostics(
    view: View, objects: KubernetesObjects, members: Mapping[Group, Sequence[Member]]
) -> Iterator[Diagnostic]:
    """Yield the findings about the pools of a view.

    `members` maps each group to the replicas that receive requests, with their weights.
    """
    for pool in view.pools.values():
        yield from _errors(pool)
        yield from assumed_port(pool)
        yield from _foreign(pool, objects)
        yield from _balance(pool)
        yield from _locality(pool)
        yield from _faults(view, pool)
    yield from same_services(view.pools.values(), _differences)
    for (name, _), ready in members.items():
        pool = view.pools[name]
        if len(ready) > MAX_ENDPOINTS:
            message = f"a ServiceEntry has at most {MAX_ENDPOINTS} endpoints, but this pool has {len(ready)} replicas"
            yield Diagnostic("LB172", message, path=("pools", name, "replicas"), hint="divide the pool")
        errors = rounding(pool, [weight for _, weight in ready])
        yield from rounded("Istio", pool, [replica for replica, _ in ready], errors)
    for route in view.routes.values():
        yield from _hashes(view, route)


def _errors(pool: Pool) -> Iterator[Diagnostic]:
    path: Path = ("pools", pool.name)
    discovery = pool.discovery
    if isinstance(discovery, KubernetesDiscovery) and discovery.referenced_port is None:
        message = "the routes refer to a Service by the number of its port, which is not set"
        place = (*path, "discovery", "kubernetes", *(["port"] if discovery.port else []))
        yield Diagnostic("LB171", message, path=place, hint="service_port: NUMBER")
    for replica in pool.replicas:
        if replica.address.path or is_loopback(replica.address.host):
            message = f"a ServiceEntry cannot contain {replica.address}, which only one machine can reach"
            hint = "use an address that the gateway can reach"
            yield Diagnostic("LB171", message, path=(*path, "replicas", replica.name), hint=hint)


def _foreign(pool: Pool, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    discovery = pool.discovery
    if isinstance(discovery, KubernetesDiscovery) and discovery.namespace != objects.namespace:
        message = (
            f"the Service is in another namespace: Istio reads its DestinationRule only in {discovery.namespace}, so "
            "applying it requires permissions there"
        )
        path = ("pools", pool.name, "discovery", "kubernetes", "namespace")
        yield Diagnostic("LB174", message, path=path, severity="warning")


_POLICIES = {"loadBalancer": "load balancing", "connectionPool": "connections", "outlierDetection": "passive checks"}
"""Parts of a traffic policy and the settings that they express."""


def _differences(first: Pool, other: Pool) -> str:
    """Return which of `first`'s settings apply to both pools, because Istio has one DestinationRule per Service."""
    policies = [traffic_policy(pool, "", failover(pool, ()), None, None) for pool in (first, other)]
    differing = [text for key, text in _POLICIES.items() if policies[0][key] != policies[1][key]]
    return f": pool {first.name} determines {', '.join(differing)}" if differing else ""


def _balance(pool: Pool) -> Iterator[Diagnostic]:
    path: Path = ("pools", pool.name)
    if pool.affinity is None and pool.balance.algorithm == "random" and is_uneven(pool):
        message = (
            "Istio's random algorithm ignores weights, but the weights of these replicas differ: lbctl uses "
            "round_robin instead"
        )
        yield warning("pool.balance.random", message, (*path, "balance"))
    ramp = pool.slow_start
    if consistent_hash(pool) is None and ramp is not None and ramp.aggression < MIN_AGGRESSION:
        message = f"Istio has no aggression below {MIN_AGGRESSION:g}, so the weight of a new replica rises linearly"
        yield warning("pool.slow_start", message, (*path, "slow_start", "aggression"), "aggression: 1")
    if isinstance(pool.discovery, DnsDiscovery) and pool.discovery.resolvers:
        message = "Istio resolves the name with the name servers of the gateway's pods"
        yield warning(
            "pool.discovery.dns", message, (*path, "discovery", "dns", "resolvers"), "remove the name servers"
        )


def _locality(pool: Pool) -> Iterator[Diagnostic]:
    if pool.locality is None:
        return
    path = ("pools", pool.name, "locality")
    if pool.locality.spill_below != _SPILL_BELOW:
        message = "Istio has no setting for this share: requests leave the locality if fewer than 72 % are healthy"
        yield warning("pool.locality", message, (*path, "spill_below"), "remove it")
    if isinstance(pool.discovery, DnsDiscovery):
        message = "Istio does not know the locations of the addresses of a name: all of them count as equally near"
        yield warning("pool.locality", message, path, "list the replicas with their regions and zones")
    elif len({replica.priority for replica in pool.replicas}) > 1:
        message = "with several priorities, near replicas are preferred only within the first priority"
        yield warning("pool.locality", message, path, "use one priority")


def _faults(view: View, pool: Pool) -> Iterator[Diagnostic]:
    """Yield the checks that count declined requests as failures. Istio cannot exclude statuses from them."""
    routes = [
        route for route in view.routes.values() if isinstance(route.action, Forward) and pool.name in route.action.pools
    ]
    counted = [str(status) for status in busy_statuses_of_pool(pool, routes) if status >= 500]
    if pool.passive is not None and counted:
        message = (
            f"Istio counts every 5xx, including {' and '.join(counted)} from a busy replica: "
            f"{pool.passive.consecutive_5xx} in a row eject the replica"
        )
        path = ("pools", pool.name, "health", "passive", "consecutive_5xx")
        yield warning("pool.health.passive.consecutive_5xx", message, path, "let a busy replica answer with 429")


def _hashes(view: View, route: Route) -> Iterator[Diagnostic]:
    pools = [share.pool for share in route.action.shares] if isinstance(route.action, Forward) else []
    keys = [key for pool in pools if (key := consistent_hash(view.pools[pool])) is not None]
    if any(key != keys[0] for key in keys):
        message = "Istio configures hash keys per route: all pools of this split use the keys of all pools"
        yield warning("pool.balance.hash", message, ("routes", route.name, "split"))

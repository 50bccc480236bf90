"""The Services to which routes refer: existing ones of discovered pools, and rendered ones for all other replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lbctl.base import ports
from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import KubernetesDiscovery, Pool, Replica
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, Route
from lbctl.ir.shares import in_regions
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.manifests.classes import MAX_WEIGHT, WeightClasses, limits, weight_classes
from lbctl.targets.manifests.names import SERVICE, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.services import PoolService, add_service, app_protocol, service_port, shape
from lbctl.targets.replica_weights import quantise
from lbctl.targets.target import Prerequisite

MAX_BACKENDS = 16
"""Maximum number of backends of a rule."""
_TOLERANCE = 0.02
"""Maximum relative error of a replica's share without a warning."""
_MIRROR, _CLOSED = "mirror", "closed"
CLOSED_PORT = 80
INFERENCE_GROUP = "inference.networking.k8s.io"
_POOL = object_name("InferencePool")

Group = tuple[str, tuple[str, ...]]
"""A pool, and the regions of the replicas that may answer (empty: all)."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A Service or InferencePool that gets requests of a pool."""

    name: str
    namespace: str | None
    """None: the namespace of the routes."""
    port: int
    weight: int = 1
    """Relative to the other Services of the pool."""
    is_picked: bool = False
    """Whether it is an InferencePool."""

    def tree(self, weight: int | None = None) -> Tree:
        """Return a reference to it."""
        share = {"weight": weight} if weight is not None else {}
        if self.is_picked:
            return {"name": self.name, "group": INFERENCE_GROUP, "kind": "InferencePool", **share}
        namespace = {"namespace": self.namespace} if self.namespace is not None else {}
        return {"name": self.name, **namespace, "port": self.port, **share}


class Backends:
    """The Services and InferencePools of all pools of a view."""

    def __init__(self, view: View, objects: KubernetesObjects) -> None:
        self._view = view
        self._objects = objects
        self._groups = {group: self._classes(group, most) for group, most in self._max_classes().items()}
        self._mirrored = {
            _group(route, route.action.mirror.pool)
            for route in view.routes.values()
            if isinstance(route.action, Forward) and route.action.mirror
        }
        self._names = names(SERVICE, self._wanted())
        picked = [name for name, pool in view.pools.items() if is_picked(pool)]
        by_parts = names(_POOL, [(view.proxy.name, name) for name in picked])
        self._pools = {name: by_parts[view.proxy.name, name] for name in picked}
        """Picked pool → name of its InferencePool."""

    def of(self, route: Route, pool: str) -> list[Backend]:
        """Return the Services of a pool for the requests of a route, with their weights."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            existing = self._existing(discovery)
            return [replace(existing, name=self._pools[pool], is_picked=True)] if pool in self._pools else [existing]
        group = _group(route, pool)
        port = service_port(self._view.pools[pool])
        classes = self._groups[group].classes
        weights = [item.weight for item in classes]
        return [
            Backend(self._names[parts], None, port, weight)
            for parts, weight in zip(
                self._class_parts(group), weights if any(weights) else [1] * len(weights), strict=True
            )
        ]

    def mirror(self, route: Route, pool: str) -> Backend:
        """Return the Service for copies of requests, which has all replicas of the pool."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            return self._existing(discovery)
        backends = self.of(route, pool)
        group = _group(route, pool)
        if len(backends) == 1:
            return backends[0]
        return Backend(self._names[self._mirror_parts(group)], None, backends[0].port)

    @property
    def closed(self) -> Backend:
        """Return the Service without endpoints: the backend of routes that return 503."""
        return Backend(self._names[self._view.proxy.name, _CLOSED], None, CLOSED_PORT)

    def references(self, route: Route, shares: Mapping[str, int]) -> list[Tree]:
        """Return the backends of a rule that divides requests among pools by `shares`."""
        backends = [(pool, backend) for pool in shares for backend in self.of(route, pool)]
        if len(backends) == 1:
            return [backends[0][1].tree()]
        weights = self._weights(shares, backends)
        return [backend.tree(weight) for (_, backend), weight in zip(backends, weights, strict=True)]

    def _weights(self, shares: Mapping[str, int], backends: Sequence[tuple[str, Backend]]) -> list[int]:
        if len(shares) == 1:
            return [backend.weight for _, backend in backends]
        totals = {pool: sum(item.weight for owner, item in backends if owner == pool) for pool in shares}
        exact = [Fraction(shares[pool] * item.weight, totals[pool]) for pool, item in backends]
        scale = math.lcm(*(item.denominator for item in exact))
        weights = [int(item * scale) for item in exact]
        if max(weights) <= MAX_WEIGHT:
            return weights
        scaled = iter(quantise([float(item) for item in exact if item], MAX_WEIGHT))
        return [next(scaled) if item else 0 for item in exact]

    def add(self, objects: Objects, *, closed: bool) -> None:
        """Add the rendered Services and their slices. `closed`: whether a rule needs the Service without endpoints."""
        for group, found in self._groups.items():
            pool = self._view.pools[group[0]]
            for parts, item in zip(self._class_parts(group), found.classes, strict=True):
                self._add(objects, pool, parts, item.replicas)
            if self._has_mirror(group):
                self._add(objects, pool, self._mirror_parts(group), self._everyone(group))
        for pool_name, name in self._pools.items():
            objects.add(
                f"{INFERENCE_GROUP}/v1", "InferencePool", name, "pool", ("pools", pool_name),
                spec=self._inference_pool(pool_name),
            )  # fmt: skip
        if closed:
            port = {"name": "http", "port": CLOSED_PORT, "protocol": "TCP", "appProtocol": "http"}
            path = ("proxies", self._view.proxy.name)
            name = self.closed.name
            objects.add("v1", "Service", name, "route", path, spec={"type": "ClusterIP", "ports": [port]})

    def prerequisites(self) -> Iterator[Prerequisite]:
        """Yield the Services of the picker."""
        for pool in self._pools:
            words = ("kubectl", "-n", self._objects.namespace, "create", "service", "clusterip", self._picker(pool))
            yield Prerequisite((*words, f"--tcp={self._picker_port}"))

    def _picker(self, pool: str) -> str:
        """Return the name of the Service of a pool's picker."""
        parts = (self._objects.picker, *([pool] if len(self._pools) > 1 else []))
        return names(SERVICE, [parts])[parts]

    @property
    def _picker_port(self) -> int:
        return self._view.picker.port if self._view.picker else ports.PICKER

    def _inference_pool(self, name: str) -> Tree:
        """Return the specification of an InferencePool. Without the picker, the gateway chooses the replica."""
        discovery = self._view.pools[name].discovery
        assert isinstance(discovery, KubernetesDiscovery)
        return {
            "selector": {"matchLabels": dict(discovery.selector)},
            "targetPorts": [{"number": int(discovery.port)}],
            "endpointPickerRef": {
                "name": self._picker(name),
                "group": "",
                "kind": "Service",
                "port": {"number": self._picker_port},
                "failureMode": "FailOpen",
            },
        }

    def targets_of(self, pool: str) -> list[Tree]:
        """Return the references by which a policy selects a pool's Services, or its InferencePool."""
        discovery = self._view.pools[pool].discovery
        if pool in self._pools:
            return [{"name": self._pools[pool], "group": INFERENCE_GROUP, "kind": "InferencePool"}]
        if isinstance(discovery, KubernetesDiscovery):
            services = [discovery.service] if discovery.namespace == self._objects.namespace else []
        else:
            services = sorted(name for parts, name in self._names.items() if parts[1:2] == (pool,) and len(parts) > 2)
        return [{"name": name, "group": "", "kind": "Service"} for name in services]

    def warnings(self) -> Iterator[Diagnostic]:
        """Yield the warnings about replicas whose share is off because classes were joined."""
        for (pool, _), found in self._groups.items():
            if found.error > _TOLERANCE:
                message = (
                    f"a rule has at most {MAX_BACKENDS} backends, so classes of replicas with similar weights are "
                    f"joined: the share of a replica is off by up to {found.error:.0%}"
                )
                hint = "use fewer different weights"
                yield Diagnostic("LB206", message, path=("pools", pool, "replicas"), hint=hint, severity="warning")

    def _add(self, objects: Objects, pool: Pool, parts: Parts, replicas: tuple[Replica, ...]) -> None:
        view = self._view
        websocket = any(
            route.websocket and isinstance(route.action, Forward) and pool.name in route.action.pools
            for route in view.routes.values()
        )
        service = PoolService(self._names[parts], replicas, service_port(pool), app_protocol(pool, websocket=websocket))
        same_zone = pool.locality is not None and pool.locality.prefer == "zone"
        add_service(objects, service, view.drained[pool.name], ("pools", pool.name), same_zone=same_zone)

    def _existing(self, discovery: KubernetesDiscovery) -> Backend:
        namespace = None if discovery.namespace == self._objects.namespace else discovery.namespace
        return Backend(discovery.service, namespace, discovery.referenced_port or CLOSED_PORT)

    def _wanted(self) -> Iterator[Parts]:
        yield (self._view.proxy.name, _CLOSED)
        for group in self._groups:
            yield from self._class_parts(group)
            if self._has_mirror(group):
                yield self._mirror_parts(group)

    def _has_mirror(self, group: Group) -> bool:
        return group in self._mirrored and len(self._groups[group].classes) > 1

    def _class_parts(self, group: Group) -> list[Parts]:
        """Return the parts of the names of the group's Services, by class."""
        classes = enumerate(self._groups[group].classes, start=1)
        return [self._parts(group, str(index), item.replicas) for index, item in classes]

    def _mirror_parts(self, group: Group) -> Parts:
        return self._parts(group, _MIRROR, self._everyone(group))

    def _everyone(self, group: Group) -> tuple[Replica, ...]:
        everyone = (replica for item in self._groups[group].classes for replica in item.replicas)
        return tuple(sorted(everyone, key=lambda item: item.name))

    def _parts(self, group: Group, suffix: str, replicas: Sequence[Replica]) -> Parts:
        pool, regions = group
        return (self._view.proxy.name, pool, *regions, suffix, *shape(replicas))

    def _max_classes(self) -> dict[Group, int]:
        """Return the maximum number of classes of each rendered group, over all rules that use it."""
        allowed: dict[Group, int] = {}
        for route in self._view.routes.values():
            for pools in _rules(route):
                groups = [_group(route, pool) for pool in pools]
                counts = [self._count(group) for group in groups]
                for group, most in zip(groups, limits(counts, max(MAX_BACKENDS, len(groups))), strict=True):
                    allowed[group] = min(most, allowed.get(group, most))
        return {
            group: most
            for group, most in sorted(allowed.items())
            if not isinstance(self._view.pools[group[0]].discovery, KubernetesDiscovery)
        }

    def _count(self, group: Group) -> int:
        if isinstance(self._view.pools[group[0]].discovery, KubernetesDiscovery):
            return 1
        return len({weight.rate for _, weight in self._members(group)}) or 1

    def _classes(self, group: Group, most: int) -> WeightClasses:
        return weight_classes(self._members(group), self._view.drained[group[0]], most)

    def _members(self, group: Group) -> list[tuple[Replica, Weight]]:
        """Return the replicas of the first priority in these regions, with their weights."""
        name, regions = group
        pool = self._view.pools[name]
        pairs = [
            (replica, weight)
            for replica, weight in zip(pool.replicas, self._view.weights[name], strict=True)
            if in_regions(replica, regions)
        ]
        ready = [replica.priority for replica, _ in pairs if replica.name not in self._view.drained[name]]
        first = min(ready, default=0)
        return [(replica, weight) for replica, weight in pairs if replica.priority == first]


def is_picked(pool: Pool) -> bool:
    """Return whether the picker chooses the pool's replicas, so that the pool is an InferencePool."""
    return pool.balance.pick is not None and isinstance(pool.discovery, KubernetesDiscovery)


def _rules(route: Route) -> Iterator[list[str]]:
    """Yield the pools of each rule of a route."""
    if isinstance(route.action, Forward):
        yield [share.pool for share in route.action.shares]
        yield from ([pin.pool] for pin in route.action.pins)
        if route.action.mirror:
            yield [route.action.mirror.pool]


def _group(route: Route, pool: str) -> Group:
    return pool, route.regions

"""The Services to which routes refer: existing ones of discovered pools, and rendered ones for all other replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import KubernetesDiscovery, Pool, Replica
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.http_route import Way
from lbctl.targets.manifests.names import SERVICE, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.pickers import PORT, Pickers
from lbctl.targets.manifests.pool_classes import Group, PoolClasses, group_of, shared_weights
from lbctl.targets.manifests.services import PoolService, add_service, app_protocol, service_port, shape

_MIRROR, _CLOSED = "mirror", "closed"
CLOSED_PORT = 80
INFERENCE_GROUP = "inference.networking.k8s.io"
_POOL = object_name("InferencePool")


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
        self.classes = PoolClasses(view, is_rendered=lambda pool: not isinstance(pool.discovery, KubernetesDiscovery))
        self._groups = self.classes.groups
        self._mirrored = {
            group_of(route, route.action.mirror.pool)
            for route in view.routes.values()
            if isinstance(route.action, Forward) and route.action.mirror
        }
        self._names = names(SERVICE, self._wanted())
        picked = [name for name, pool in view.pools.items() if is_picked(pool)]
        by_parts = names(_POOL, [(view.proxy.name, name) for name in picked])
        self._pools = {name: by_parts[view.proxy.name, name] for name in picked}
        """Picked pool → name of its InferencePool."""
        self.pickers = Pickers(objects, picked)

    def of(self, route: Route, pool: str) -> list[Backend]:
        """Return the Services of a pool for the requests of a route, with their weights."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            existing = self._existing(discovery)
            return [replace(existing, name=self._pools[pool], is_picked=True)] if pool in self._pools else [existing]
        group = group_of(route, pool)
        port = service_port(self._view.pools[pool])
        classes = self._groups[group].classes
        weights = [item.weight for item in classes]
        return [
            Backend(self._names[parts], None, port, weight)
            for parts, weight in zip(
                self._class_parts(group), weights if any(weights) else [1] * len(weights), strict=True
            )
        ]

    def mirror_reference(self, route: Route, pool: str) -> Tree:
        """Return the Service for copies of requests, which has all replicas of the pool."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            return self._existing(discovery).tree()
        backends = self.of(route, pool)
        if len(backends) == 1:
            return backends[0].tree()
        return Backend(self._names[self._mirror_parts(group_of(route, pool))], None, backends[0].port).tree()

    def response(self, listener: Listener, way: Way) -> Tree:  # noqa: ARG002 -- the response is the same everywhere
        """Return the Service without endpoints: the API has no responses by the gateway."""
        return {"backendRefs": [self.closed.tree()]}

    def filters(self, listener: Listener, way: Way) -> list[Tree]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because the standard filters are enough."""
        return []

    @property
    def closed(self) -> Backend:
        """Return the Service without endpoints: the backend of routes that return 503."""
        return Backend(self._names[self._view.proxy.name, _CLOSED], None, CLOSED_PORT)

    def references(self, route: Route, shares: Mapping[str, int]) -> list[Tree]:
        """Return the backends of a rule that divides requests among pools by `shares`."""
        backends = [(pool, backend) for pool in shares for backend in self.of(route, pool)]
        if len(backends) == 1:
            return [backends[0][1].tree()]
        weights = shared_weights(shares, [(owner, False, backend.weight) for owner, backend in backends])
        return [backend.tree(weight) for (_, backend), weight in zip(backends, weights, strict=True)]

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

    def _inference_pool(self, name: str) -> Tree:
        """Return the specification of an InferencePool. Without the picker, the gateway chooses the replica."""
        discovery = self._view.pools[name].discovery
        assert isinstance(discovery, KubernetesDiscovery)
        return {
            "selector": {"matchLabels": dict(discovery.selector)},
            "targetPorts": [{"number": int(discovery.port)}],
            "endpointPickerRef": {
                "name": self.pickers.services[name],
                "group": "",
                "kind": "Service",
                "port": {"number": PORT},
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


def is_picked(pool: Pool) -> bool:
    """Return whether the picker chooses the pool's replicas, so that the pool is an InferencePool."""
    return pool.balance.pick is not None and isinstance(pool.discovery, KubernetesDiscovery)

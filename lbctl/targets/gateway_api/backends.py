"""The backends for routes: existing Services and InferencePools for discovered pools, rendered ones for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import KubernetesDiscovery, Pool, Replica
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.grants import INFERENCE_GROUP, existing
from lbctl.targets.manifests.http_route import Way
from lbctl.targets.manifests.names import SERVICE, Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.pickers import PORT, Pickers
from lbctl.targets.manifests.pool_classes import Group, PoolClasses, group_of, shared_weights
from lbctl.targets.manifests.services import PoolService, add_service, app_protocol, service_port, shape

_MIRROR, _CLOSED = "mirror", "closed"
CLOSED_PORT = 80
_POOL = object_name("InferencePool")


@dataclass(frozen=True, slots=True)
class Backend:
    """A Service or InferencePool that receives a pool's requests."""

    name: str
    namespace: str | None
    """Namespace; None means the routes' namespace."""
    port: int
    weight: int = 1
    """Relative to the other Services of the pool."""
    is_inference_pool: bool = False

    def tree(self, weight: int | None = None) -> Tree:
        """Return a reference to it."""
        share = {"weight": weight} if weight is not None else {}
        namespace = {"namespace": self.namespace} if self.namespace is not None else {}
        if self.is_inference_pool:
            return {"name": self.name, **namespace, "group": INFERENCE_GROUP, "kind": "InferencePool", **share}
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
        """Maps each picked pool to the name of its InferencePool."""
        self.pickers = Pickers(objects, picked)

    def of(self, route: Route, pool: str) -> list[Backend]:
        """Return a pool's Services for a route's requests, with their weights."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            found = self._existing(discovery)
            return [replace(found, name=self._pools[pool], is_inference_pool=True)] if pool in self._pools else [found]
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
        """Return the Service for mirrored requests, which contains all of the pool's replicas."""
        discovery = self._view.pools[pool].discovery
        if isinstance(discovery, KubernetesDiscovery):
            return self._existing(discovery).tree()
        backends = self.of(route, pool)
        if len(backends) == 1:
            return backends[0].tree()
        return Backend(self._names[self._mirror_parts(group_of(route, pool))], None, backends[0].port).tree()

    def response(self, listener: Listener, way: Way) -> Tree:  # noqa: ARG002 -- the response is the same everywhere
        """Return the Service without endpoints, because the API cannot express responses sent by the gateway."""
        return {"backendRefs": [self.closed.tree()]}

    def filters(self, listener: Listener, way: Way) -> list[Tree]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because the standard filters are enough."""
        return []

    @property
    def closed(self) -> Backend:
        """Return the Service without endpoints, which is the backend for routes that return 503."""
        return Backend(self._names[self._view.proxy.name, _CLOSED], None, CLOSED_PORT)

    def references(self, route: Route, shares: Mapping[str, int]) -> list[Tree]:
        """Return the backends of a rule that splits requests among pools by `shares`."""
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
        """Return the references with which a policy selects a pool's Services or its InferencePool."""
        discovery = self._view.pools[pool].discovery
        if pool in self._pools:
            return [{"name": self._pools[pool], "group": INFERENCE_GROUP, "kind": "InferencePool"}]
        if isinstance(discovery, KubernetesDiscovery):
            return [existing(discovery)] if discovery.namespace == self._objects.namespace else []
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
        name, port = discovery.service or discovery.inference_pool, discovery.referenced_port or CLOSED_PORT
        return Backend(name, namespace, port, is_inference_pool=bool(discovery.inference_pool))

    def _wanted(self) -> Iterator[Parts]:
        yield (self._view.proxy.name, _CLOSED)
        for group in self._groups:
            yield from self._class_parts(group)
            if self._has_mirror(group):
                yield self._mirror_parts(group)

    def _has_mirror(self, group: Group) -> bool:
        return group in self._mirrored and len(self._groups[group].classes) > 1

    def _class_parts(self, group: Group) -> list[Parts]:
        """Return the parts of the names of a group's Services, by class."""
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
    """Return whether lbctl's picker chooses the pool's replicas, so that lbctl renders an InferencePool."""
    is_discovered = isinstance(pool.discovery, KubernetesDiscovery) and not has_inference_pool(pool)
    return is_discovered and pool.balance.pick is not None


def has_inference_pool(pool: Pool) -> bool:
    """Return whether the pool is an existing InferencePool, whose own picker chooses the replicas."""
    return isinstance(pool.discovery, KubernetesDiscovery) and bool(pool.discovery.inference_pool)


def without_copies(view: View) -> tuple[View, list[Diagnostic]]:
    """Return the view without request mirroring to existing InferencePools, and a warning for each such route."""
    routes = dict(view.routes)
    warnings: list[Diagnostic] = []
    for name, route in view.routes.items():
        action = route.action
        if isinstance(action, Forward) and action.mirror and has_inference_pool(view.pools[action.mirror.pool]):
            message = (
                f"mirrored requests go to Services, but pool {action.mirror.pool} is an InferencePool: no requests "
            )
            message += "are copied"
            warnings.append(warning("route.mirror", message, ("routes", name, "mirror"), "use a pool with `service`"))
            routes[name] = replace(route, action=replace(action, mirror=None))
    return replace(view, routes=routes), warnings

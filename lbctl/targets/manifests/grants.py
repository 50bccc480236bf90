"""References to existing Services, InferencePools and Gateways, including references to other namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import KubernetesDiscovery
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree

_GRANT = "gateway.networking.k8s.io/v1beta1"
"""The only ReferenceGrant version that all supported versions of the API have."""
INFERENCE_GROUP = "inference.networking.k8s.io"


def existing(discovery: KubernetesDiscovery) -> Tree:
    """Return the reference to a pool's Service or InferencePool, without namespace and port."""
    if discovery.inference_pool:
        return {"name": discovery.inference_pool, "group": INFERENCE_GROUP, "kind": "InferencePool"}
    return {"name": discovery.service, "group": "", "kind": "Service"}


def kind_of(discovery: KubernetesDiscovery) -> str:
    """Return the kind of the existing object that contains the pool's replicas."""
    return "InferencePool" if discovery.inference_pool else "Service"


def diagnostics(view: View, objects: KubernetesObjects) -> Iterator[Diagnostic]:
    """Yield the references that need permissions in another namespace."""
    if objects.gateway_namespace not in (None, objects.namespace):
        message = (
            f"the Gateway is in another namespace: its listeners must allow routes from {objects.namespace} "
            "(allowedRoutes), which only its owner can configure"
        )
        place = ("proxies", view.proxy.name, "kubernetes", "gateway")
        yield Diagnostic("LB174", message, path=place, severity="warning")
    for pool, discovery in _foreign(view, objects):
        message = (
            f"the {kind_of(discovery)} is in another namespace: a ReferenceGrant in {discovery.namespace} "
            "lets the routes refer to it, so applying it requires permissions there"
        )
        path = ("pools", pool, "discovery", "kubernetes", "namespace")
        yield Diagnostic("LB174", message, path=path, severity="warning")


def add_grants(objects: Objects, view: View, kubernetes: KubernetesObjects) -> None:
    """Add the ReferenceGrants that allow routes to refer to Services and InferencePools in other namespaces."""
    wanted: dict[Parts, tuple[str, KubernetesDiscovery]] = {
        (kubernetes.namespace, view.proxy.name, pool): (pool, discovery)
        for pool, discovery in _foreign(view, kubernetes)
    }
    # Other fleets may also have grants in this namespace.
    by_parts = names(object_name("ReferenceGrant"), wanted)
    for parts, (pool, discovery) in wanted.items():
        spec = {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": kubernetes.namespace}],
            "to": [existing(discovery)],
        }
        source = ("pools", pool)
        objects.add(_GRANT, "ReferenceGrant", by_parts[parts], "pool", source, namespace=discovery.namespace, spec=spec)


def _foreign(view: View, objects: KubernetesObjects) -> Iterable[tuple[str, KubernetesDiscovery]]:
    """Yield the pools whose Service or InferencePool is in another namespace."""
    for pool in view.pools.values():
        if isinstance(pool.discovery, KubernetesDiscovery) and pool.discovery.namespace != objects.namespace:
            yield pool.name, pool.discovery

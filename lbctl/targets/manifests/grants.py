"""References to Services and Gateways of other namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import KubernetesDiscovery
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects

_GRANT = "gateway.networking.k8s.io/v1beta1"
"""The only version of a ReferenceGrant that all supported versions of the API have."""


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
            f"the Service is in another namespace: a ReferenceGrant in {discovery.namespace} lets the routes refer to "
            "it, and applying it needs permissions there"
        )
        path = ("pools", pool, "discovery", "kubernetes", "namespace")
        yield Diagnostic("LB174", message, path=path, severity="warning")


def add_grants(objects: Objects, view: View, kubernetes: KubernetesObjects) -> None:
    """Add the ReferenceGrants that let routes refer to Services of other namespaces."""
    wanted: dict[Parts, tuple[str, KubernetesDiscovery]] = {
        (kubernetes.namespace, view.proxy.name, pool): (pool, discovery)
        for pool, discovery in _foreign(view, kubernetes)
    }
    # Other fleets may also have grants in this namespace.
    by_parts = names(object_name("ReferenceGrant"), wanted)
    for parts, (pool, discovery) in wanted.items():
        spec = {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": kubernetes.namespace}],
            "to": [{"name": discovery.service, "group": "", "kind": "Service"}],
        }
        source = ("pools", pool)
        objects.add(_GRANT, "ReferenceGrant", by_parts[parts], "pool", source, namespace=discovery.namespace, spec=spec)


def _foreign(view: View, objects: KubernetesObjects) -> Iterable[tuple[str, KubernetesDiscovery]]:
    """Yield the pools whose Service is in another namespace."""
    for pool in view.pools.values():
        if isinstance(pool.discovery, KubernetesDiscovery) and pool.discovery.namespace != objects.namespace:
            yield pool.name, pool.discovery

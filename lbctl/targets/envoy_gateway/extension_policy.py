"""Picker pools as EnvoyExtensionPolicies: one for each route and pool.

The picker names a replica in a header, which the rule's load balancing reads. If the picker does not respond, the
pool's algorithm `otherwise` chooses. A BackendTLSPolicy verifies its certificate, because a picker beyond loopback
requires TLS. It also requires a client certificate, which only an EnvoyProxy can name. lbctl does not render this
object, because it would replace the EnvoyProxy of the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy_gateway.context import API_VERSION, Context, rule_reference
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.gateway import GROUP
from lbctl.targets.manifests.http_route import PlacedRule, path_of
from lbctl.targets.manifests.names import names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.manifests.pickers import PORT, Pickers
from lbctl.targets.target import Prerequisite

_POLICY = object_name("EnvoyExtensionPolicy")
_TLS_POLICY = object_name("BackendTLSPolicy")
_CONFIG_MAP = object_name("ConfigMap")


def picked_pool(view: View, objects: KubernetesObjects, shares: Mapping[str, float]) -> Pool | None:
    """Return the pool whose replica the picker chooses for a rule's requests, or None.

    A rule has only one picker, even if it splits requests among pools. On an existing Gateway, lbctl cannot remove the
    replica header from clients' requests.
    """
    if len(shares) != 1 or objects.gateway is not None:
        return None
    pool = view.pools[next(iter(shares))]
    return pool if pool.balance.pick is not None else None


def add(objects: Objects, context: Context) -> None:
    """Add the policies."""
    view = context.view
    rules: dict[tuple[str, str], list[PlacedRule]] = {}
    for rule in context.placed:
        pool = picked_pool(view, context.objects, rule.way.shares)
        if pool is not None:
            rules.setdefault((rule.way.route.name, pool.name), []).append(rule)
    by_parts = names(_POLICY, [(view.proxy.name, *key) for key in rules])
    services = _pickers(context).services
    for (route, pool_name), placed in rules.items():
        processing = _processing(placed[0].way.route, view.pools[pool_name], services[pool_name])
        spec = {"targetRefs": list(map(rule_reference, placed)), "extProc": [processing]}
        name = by_parts[view.proxy.name, route, pool_name]
        objects.add(API_VERSION, "EnvoyExtensionPolicy", name, "route", path_of(placed[0].way.route), spec=spec)
    _add_tls(objects, context, services)


def _add_tls(objects: Objects, context: Context, services: Mapping[str, str]) -> None:
    """Add a BackendTLSPolicy for each picker. `services` maps a pool to the Service of its picker."""
    proxy = context.view.proxy.name
    by_parts = names(_TLS_POLICY, [(proxy, service) for service in services.values()])
    for pool, service in services.items():
        bundle = {"group": "", "kind": "ConfigMap", "name": _bundle(context)}
        spec: Tree = {
            "targetRefs": [{"group": "", "kind": "Service", "name": service}],
            "validation": {"caCertificateRefs": [bundle], "hostname": service},
        }
        objects.add(GROUP, "BackendTLSPolicy", by_parts[proxy, service], "pool", ("pools", pool), spec=spec)


def notes(context: Context) -> Iterator[str]:
    """Yield the Services of the picker."""
    return _pickers(context).notes()


def prerequisites(context: Context) -> Iterator[Prerequisite]:
    """Yield the CA bundle of the pickers, which the gateways of a namespace share."""
    if _pickers(context).services:
        words = ("kubectl", "-n", context.objects.namespace, "create", "configmap", _bundle(context))
        yield Prerequisite((*words, "--from-file=ca.crt=FILE"), note="FILE is the CA bundle of the pickers")


def _bundle(context: Context) -> str:
    """Return the name of the ConfigMap with the CA bundle of all pickers."""
    parts = (context.objects.picker, "ca")
    return names(_CONFIG_MAP, [parts])[parts]


def _pickers(context: Context) -> Pickers:
    """Return the pickers of the pools that a rule routes to."""
    found = (picked_pool(context.view, context.objects, rule.way.shares) for rule in context.placed)
    return Pickers(context.objects, {pool.name for pool in found if pool is not None})


def _processing(route: Route, pool: Pool, service: str) -> Tree:
    pick = pool.balance.pick
    assert pick is not None
    reads = pick.reads_bodies and not route.websocket and pool.protocol != "grpc"
    return {
        "backendRefs": [{"name": service, "port": PORT}],
        "failOpen": True,
        "messageTimeout": duration(pick.timeout),
        "processingMode": {"request": {"body": "BufferedPartial"} if reads else {}, "response": {}},
    }


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    """Yield the picker pools that a rule routes to without the picker."""
    view = context.view
    if context.objects.gateway is not None:
        for pool in view.pools.values():
            if pool.balance.pick is not None:
                message = (
                    "lbctl does not render this Gateway, so clients could choose their replica: the gateway uses "
                    "`otherwise` instead of the picker"
                )
                yield warning("pool.balance.pick", message, ("pools", pool.name, "balance"), "set `gateway_class`")
        return
    for route in view.routes.values():
        shares = [share.pool for share in route.action.shares] if isinstance(route.action, Forward) else []
        picked = [name for name in shares if view.pools[name].balance.pick is not None]
        if picked and len(shares) > 1:
            message = f"a rule with several pools has no picker: the gateway uses `otherwise` for pool {picked[0]}"
            yield warning("pool.balance.pick", message, (*path_of(route), "split"), "use a route for each pool")

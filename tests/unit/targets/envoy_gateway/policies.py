"""The policies and filters of a fleet, without the objects to which they are attached."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.routes import Route
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.envoy_gateway import (
    client_policy,
    extension_policy,
    request_changes,
    route_filters,
    security_policy,
)
from lbctl.targets.envoy_gateway.context import Context
from lbctl.targets.load import load
from lbctl.targets.manifests import gateway, http_route
from lbctl.targets.manifests.closing import closed_view
from lbctl.targets.manifests.http_route import PlacedRule
from lbctl.targets.manifests.objects import Objects
from lbctl.targets.manifests.tls import Certificates

LISTENERS = 'listeners: {web: {bind: "0.0.0.0:80"}}'
ROUTES = "routes: {r: {match: {path_prefix: /v1}, pool: p}}"
POOLS = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}}'
OWN, EXISTING = "gateway_class: eg", "gateway: shared"
MODULES = (client_policy, security_policy, extension_policy, route_filters)
PRECEDED = (client_policy, security_policy, extension_policy, route_filters)
"""Modules whose objects need others."""


@dataclass(frozen=True)
class Rendered:
    """Objects and findings of the modules for a fleet."""

    specs: dict[str, dict[str, Any]]
    """`KIND NAME` → specification."""
    warnings: list[str]
    """`CODE path.of.the.value` of each warning."""
    commands: list[str]
    """Commands that create the prerequisites."""
    notes: list[str]
    context: Context
    rules: dict[str, dict[str, Any]]
    """Name of a rule → its part that handles requests without a pool."""
    routes: Mapping[str, Route]
    """Routes with the changes of requests that their pools need."""


def rendered(
    listeners: str = LISTENERS,
    routes: str = ROUTES,
    pools: str = POOLS,
    *,
    version: tuple[int, ...] = (1, 9),
    place: str = OWN,
    secrets: Secrets | None = None,
) -> Rendered:
    """Return the policies and filters of a fleet."""
    entry = f"proxies: {{edge: {{kind: gateway-api, kubernetes: {{namespace: ml, {place}}}}}}}"
    text = "\n".join(("version: 1", listeners, routes, pools, entry, ""))
    diagnostics = Diagnostics()
    loaded = load(["-"], diagnostics, stdin=io.BytesIO(text.encode()))
    assert loaded is not None, list(diagnostics)
    topology = loaded.compiled.topology
    proxy = replace(topology.proxies[0], kind="envoy-gateway", version=version)
    assert proxy.kubernetes is not None
    whole = view(Snapshot(topology, secrets=secrets or Secrets()), proxy)
    found = [
        *client_policy.gaps(whole, proxy.kubernetes),
        *security_policy.gaps(whole, proxy.kubernetes),
        *route_filters.gaps(whole, proxy.kubernetes),
    ]
    closed, warnings = closed_view(whole, proxy.kubernetes, found)
    changed = request_changes.adapted(closed, proxy.kubernetes)
    context = _context(closed, changed)
    objects = Objects("edge", "ml")
    for module in MODULES:
        module.add(objects, context)
        warnings += module.diagnostics(context)
    return Rendered(
        {f"{tree['kind']} {tree['metadata']['name']}": tree["spec"] for tree in _trees(objects)},
        [f"{item.code} {'.'.join(map(str, item.path))}" for item in warnings],
        [
            item.command(str) + (f" ({item.note})" if item.note else "")
            for module in PRECEDED
            for item in module.prerequisites(context)
        ],
        list(extension_policy.notes(context)),
        context,
        {
            item.name: route_filters.response(closed, route_filters.filter_names(closed), item.listener, item.way)
            for item in context.placed
            if not item.way.shares and not item.way.redirect
        },
        changed.routes,
    )


def _trees(objects: Objects) -> list[Any]:
    return list(objects.trees)


def _context(closed: View, changed: View) -> Context:
    tables, errors = http_route.tables(changed, permanent_redirects=True)
    assert not errors
    placed = [
        PlacedRule(way, table.listener, f"edge-{table.listener.name}{'-host' * bool(table.host)}", ".".join(way.name))
        for table in tables
        for way, _ in table.ways
    ]
    place = closed.proxy.kubernetes
    assert place is not None
    verifying = [item for item in closed.listeners if item.tls and item.tls.client_ca and place.gateway is None]
    certificates = Certificates(closed, place, listeners=verifying, pools=[], client=None)
    return Context(closed, place, gateway.sections(closed, place), placed, certificates)

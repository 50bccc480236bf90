"""Converts an Envoy configuration to a draft of a fleet."""

from __future__ import annotations

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer import headers
from lbctl.importer.draft import Draft
from lbctl.importer.envoy.clusters import aggregate, pool, without_key
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.filters import filters
from lbctl.importer.envoy.listeners import Manager, managers
from lbctl.importer.envoy.routes import routes
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.importer.ledger import WRITTEN, Ledger
from lbctl.model.node import Node

_REASONS = {
    "node": "`lbctl bootstrap` writes the `node` section",
    "tracing": "write `tracing` by hand",
    "dynamic_resources": "`lbctl bootstrap` connects to `lbctl serve`",
    **dict.fromkeys(
        ("layered_runtime", "stats_sinks", "overload_manager", "stats_config", "dns_resolution_config", "server_name",
         "stream_idle_timeout", "per_connection_buffer_limit_bytes"),
        WRITTEN,
    ),
    "typed_per_filter_config": "the fleet file has no key for this filter",
    "response_headers_to_add": "lbctl does not support the variables in this header",
    "eds_cluster_config": "the endpoints are not in this configuration",
}  # fmt: skip


def convert(root: Node, file: str, diagnostics: Diagnostics, *, own: bool) -> Draft:
    """Return the draft of a fleet. If the configuration contains no HTTP listener, a diagnostic is added."""
    view = ConfigView(root, "")
    ledger = Ledger(view.statement.block, diagnostics)
    context = EnvoyImport(Draft(ledger, keeps_own=own))
    static = view.get("static_resources")
    context.clusters.update({item.get("name").text: item for item in static.get("clusters")})
    context.endpoints.update({item.get("cluster_name").text: item for item in static.get("endpoints")})
    context.route_configs.update({item.get("name").text: item for item in static.get("route_configs")})
    connection_managers = [manager for item in static.get("listeners") for manager in managers(context, item)]
    if not connection_managers:
        hint = "pass a static configuration, or the `config_dump` of a running Envoy"
        diagnostics.add(
            Diagnostic("LB982", "the configuration has no HTTP listener to import", Position(file, 1, 1), hint=hint)
        )
        return context.draft
    _admin(context, view.get("admin"))
    context.filters_of_routes.update(
        child.name
        for item in view.all
        if item.name in {"typed_per_filter_config", "typedPerFilterConfig"}
        for child in item.block
    )
    context.managers = len(connection_managers)
    for manager in connection_managers:
        _routes(context, manager)
    headers.settle(context.draft)
    _unused(context)
    for (name, _), path in context.pools.items():
        without_key(context, path, context.clusters[name])
    types = [item for item in view.all if item.name == "@type"]
    ledger.imply("this field is only the name of a message type", *types)
    ledger.settle(_REASONS, whole_blocks=True)
    return context.draft


def _routes(context: EnvoyImport, manager: Manager) -> None:
    config = manager.view.get("route_config")
    named = manager.view.get("rds", "route_config_name").text
    if not config and named in context.route_configs:
        config = context.route_configs[named]
        context.imply("the dump contains its routes", manager.view.get("rds"))
    if not config:
        reason = "the routes come from a control plane; import the running Envoy's `config_dump` instead"
        context.omit(manager.view.get("rds") or manager.view, reason, manager.path)
        return
    for name in ("name", "validate_clusters"):
        context.imply("this field is only a name or a selector", config.get(name))
    found = filters(context, manager)
    if hosts := config.get("vhds"):
        found.protections.append((hosts, None, "`vhds` is not converted"))
    routes(context, manager.path, config, found)


def _admin(context: EnvoyImport, view: ConfigView) -> None:
    """Set the address of the admin interface.

    The interface is on loopback, because its clients can stop the proxy.
    """
    address = view.get("address", "socket_address")
    host, port = address.get("address").text, address.get("port_value").text
    if not port:
        return
    near = host if host.startswith("127.") else "127.0.0.1"
    context.draft.put(("proxies", "envoy", "kind"), "envoy")
    context.put(("proxies", "envoy", "admin"), f"{near}:{port}", view)
    if near != host:
        message = f"the admin interface listens on {host}: any client that can reach it can stop the proxy"
        context.draft.ledger.advise(view.statement, message, "lbctl binds it to 127.0.0.1")


def _unused(context: EnvoyImport) -> None:
    for name, cluster in context.clusters.items():
        if name in context.services:
            context.imply("a filter uses the address of this cluster", cluster)
            continue
        if any(each == name for each, _ in context.pools) or aggregate(cluster):
            continue
        path = pool(context, cluster)
        reason = (
            "no imported route sends requests to this cluster"
            if path
            else "lbctl cannot convert this cluster to a pool"
        )
        context.omit(cluster if path is None else cluster.get("name") or EMPTY, reason, path or ())

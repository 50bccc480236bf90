"""Converts Envoy listeners that have an HTTP connection manager to fleet listeners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lbctl.base.diagnostics import Path
from lbctl.importer.envoy import tls
from lbctl.importer.envoy.context import EnvoyImport, Handler, handle
from lbctl.importer.envoy.view import ConfigView

MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_NETWORKS = ("source_prefix_ranges", "direct_source_prefix_ranges")
"""Fields in a chain's match that contain client networks."""
_REFUSING = frozenset({"rbac", "ext_authz"})
"""Network filters that may reject connections, by their message's package."""
_HARMLESS = frozenset(
    {"connection_limit", "http_connection_manager", "local_ratelimit", "ratelimit", "set_filter_state", "sni_cluster",
     "sni_dynamic_forward_proxy"}
)  # fmt: skip
"""Network filters that do not control access. Any other filter in front of HTTP might."""
_LISTENER_FILTERS = {
    "tls_inspector": "lbctl reads the server name if it needs it",
    "http_inspector": "lbctl detects the protocol",
}


@dataclass(frozen=True, slots=True)
class Manager:
    """An HTTP connection manager with its converted listener."""

    path: Path
    """The listener's path."""
    view: ConfigView
    """The typed configuration."""
    closing: tuple[tuple[ConfigView, str], ...] = ()
    """Protections for the listener that cannot be converted, with the reason."""


def managers(context: EnvoyImport, listener: ConfigView) -> Iterator[Manager]:
    """Add the listener, and yield its connection manager. TCP listeners become comments."""
    chains = [*listener.get("filter_chains"), *filter(None, [listener.get("default_filter_chain")])]
    connection_managers = [(chain, item) for chain in chains for item in chain.get("filters") if _is_manager(item)]
    bind = bind_of(listener)
    if not connection_managers or bind is None:
        reason = (
            "the listener has no HTTP connection manager"
            if not connection_managers
            else "the listener has no address that lbctl supports"
        )
        context.omit(listener, reason, ())
        return
    path = context.draft.add("listeners", listener.get("name").text or "listener", listener.statement, {"bind": bind})
    context.draft.ledger.home(listener.statement, path)
    context.imply("this is the listener's address", listener.get("address"))
    handle(context, path, listener, _HANDLERS, "name", "stat_prefix", "traffic_direction")
    (first, item), *rest = connection_managers
    closing = _transport(context, path, first)
    closing += [each for chain, _ in rest for each in _further_chain(context, path, chain)]
    closing += _before_http(context, path, chains)
    manager = item.get("typed_config")
    context.imply("lbctl handles HTTP itself", item.get("name"), manager.get("@type"))
    handle(context, path, manager, _MANAGER_HANDLERS, "stat_prefix", "codec_type")
    yield Manager(path, manager, tuple(closing))


def _before_http(context: EnvoyImport, path: Path, chains: list[ConfigView]) -> list[tuple[ConfigView, str]]:
    """Convert a chain's networks. Returns other parts that reject connections before HTTP processing."""
    ranges = [item for chain in chains for name in _NETWORKS if (item := chain.get("filter_chain_match", name))]
    if len(chains) == 1 and len(ranges) == 1:
        parts = [(item.get("address_prefix").text, item.get("prefix_len").number or 0) for item in ranges[0]]
        context.put((*path, "allow_from"), [f"{address}/{length}" for address, length in parts], ranges[0])
        ranges = []
    refusing = [
        item
        for chain in chains
        for items in [list(chain.get("filters"))]
        for item in items
        if _package(item) in _REFUSING or (any(map(_is_manager, items)) and _package(item) not in _HARMLESS)
    ]
    return [
        *((item, "matching by client network") for item in ranges),
        *((item, "a filter that refuses connections") for item in refusing),
    ]


def _is_manager(item: ConfigView) -> bool:
    return item.get("typed_config").type == MANAGER


def _package(item: ConfigView) -> str:
    """Return the package of a network filter, such as `rbac`, or an empty string if it is not one of Envoy's own."""
    name = item.get("typed_config").type
    return name.split(".")[-3] if name.startswith("envoy.") and name.count(".") > 2 else ""


def bind_of(listener: ConfigView) -> str | None:
    """Return a listener's address in fleet-file form, or None if it has no address."""
    address = listener.get("address")
    if address.get("pipe", "path"):
        return f"unix:{address.get('pipe', 'path').text}"
    host, port = address.get("socket_address", "address").text, address.get("socket_address", "port_value").text
    if not host or not port:
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _further_chain(context: EnvoyImport, path: Path, chain: ConfigView) -> list[tuple[ConfigView, str]]:
    """Convert another chain's certificate. The chain's routes must be the same as the first chain's routes."""
    closing = _transport(context, path, chain)
    context.omit(
        chain, "a listener has one set of routes: only the certificate of this filter chain is converted", path
    )
    return closing


def _transport(context: EnvoyImport, path: Path, chain: ConfigView) -> list[tuple[ConfigView, str]]:
    """Set a chain's TLS settings. Returns protections that cannot be converted."""
    socket, match = chain.get("transport_socket"), chain.get("filter_chain_match")
    if socket.get("typed_config"):
        return tls.downstream(context, path, socket, match)
    if match and not any(match.get(name) for name in _NETWORKS):
        context.omit(match, "lbctl listeners accept all connections", path)
    return []


def _listener_filters(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for item in view:
        name = item.get("typed_config").type.split(".")[-2:-1] or [""]
        kind = item.get("name").text.rpartition(".")[2]
        if "proxy_protocol" in item.get("typed_config").type:
            context.put((*path, "proxy_protocol"), True, item)
        elif kind in _LISTENER_FILTERS:
            context.imply(_LISTENER_FILTERS[kind], item)
        else:
            context.omit(
                item,
                f"the fleet file has no key for this listener filter{' (' + name[0] + ')' if name[0] else ''}",
                path,
            )


_HANDLERS: dict[str, Handler] = {"listener_filters": _listener_filters}


# ── The connection manager ───────────────────────────────────────────────────────────────────────────────────────────


def _common(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.time((*path, "timeouts", "idle"), view.get("idle_timeout"))
    if number := view.get("max_headers_count").number:
        context.put((*path, "headers", "max_count"), number, view.get("max_headers_count"))


def _header_bytes(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    if view.number:
        context.put((*path, "headers", "max_bytes"), f"{view.number}KiB", view)


def _headers(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    context.time((*path, "timeouts", "request_headers"), view)


def _implied(reason: str) -> Handler:
    def imply(context: EnvoyImport, path: Path, view: ConfigView) -> None:
        del path
        context.imply(reason, view)

    return imply


def _log(context: EnvoyImport, path: Path, view: ConfigView) -> None:
    for item in view:
        target = item.get("typed_config", "path").text
        kind = item.get("typed_config").type
        if target:
            context.draft.put((*path, "access_log", "path"), target, item.get("typed_config", "path").statement)
        elif kind.endswith("StdoutAccessLog"):
            context.imply("this is the default", item)
            continue
        context.omit(item, "lbctl's access log is JSON with a fixed set of fields", path)


_MANAGER_HANDLERS: dict[str, Handler] = {
    "common_http_protocol_options": _common,
    "max_request_headers_kb": _header_bytes,
    "request_headers_timeout": _headers,
    "access_log": _log,
    "use_remote_address": _implied(
        "lbctl uses the peer's address as the client's, unless `client_address` lists trusted peers"
    ),
    "generate_request_id": _implied("lbctl adds an ID to every request"),
    "normalize_path": _implied("lbctl refuses ambiguous paths"),
    "merge_slashes": _implied("lbctl refuses ambiguous paths"),
    "skip_xff_append": _implied("lbctl always forwards the client's address"),
    "path_with_escaped_slashes_action": _implied("lbctl refuses ambiguous paths"),
    "strip_any_host_port": _implied("`match.hosts` compares the host without its port"),
    "http2_protocol_options": _implied("lbctl sets safe limits for HTTP/2"),
}

"""Filters that authorize clients, through user passwords, external services or address lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer import credentials, headers
from lbctl.importer.envoy.context import EnvoyImport
from lbctl.importer.envoy.listeners import Manager
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.importer.values import duration

Protection = Callable[[Path], None]
"""Applies the protection to one route."""
_NETWORKS = ("source_ip", "direct_remote_ip", "remote_ip")


def protection(context: EnvoyImport, manager: Manager, kind: str, item: ConfigView) -> Protection | None:
    """Return each route's protection for a filter, or None if it cannot be expressed in a fleet."""
    reader = _READERS.get(kind)
    return reader(context, manager, item) if reader is not None else None


def own(levels: Iterable[ConfigView], item: ConfigView) -> ConfigView:
    """Return the settings of a route, or of its virtual host, for a filter. Empty if there are none."""
    name = item.get("name").text
    configs = (child for level in levels for key, child in level.get("typed_per_filter_config").fields() if key == name)
    return next(configs, EMPTY)


def _users(context: EnvoyImport, manager: Manager, item: ConfigView) -> Protection:
    typed = item.get("typed_config")
    header = typed.get("forward_username_header").text.lower()

    def lay(route: Path) -> None:
        credentials.users(context.draft, route, "", typed.statement, *item.all)
        if header:
            headers.put(context.draft, route, header, "{tenant}")

    del manager
    return lay


def _service(context: EnvoyImport, manager: Manager, item: ConfigView) -> Protection | None:
    typed = item.get("typed_config")
    http = typed.get("http_service")
    uri, prefix = http.get("server_uri"), http.get("path_prefix")
    place = _address(context.clusters.get(uri.get("cluster").text, EMPTY))
    url = credentials.url(*place, prefix.text) if http and place is not None else None
    if url is None:
        return None
    sent = typed.get("allowed_headers") or http.get("authorization_request", "allowed_headers")
    accepted = http.get("authorization_response", "allowed_upstream_headers")
    external: dict[str, Any] = {"url": url, "send": list(dict.fromkeys([*credentials.SENT, *_names(sent)]))}
    if limit := uri.get("timeout").milliseconds:
        external["timeout"] = duration(limit)
    if names := list(_names(accepted)):
        external["accept"] = names
    context.imply("lbctl queries the service over HTTP", typed.get("transport_api_version"))
    context.services.add(uri.get("cluster").text)
    message = f"Envoy queries the service at {prefix.text}PATH (PATH is the request's path); lbctl always queries {url}"
    hint = "if the service depends on the path, make it read the path from x-original-uri"
    asked = (uri.get("uri") or uri).statement
    context.draft.ledger.advise(asked, message, hint)
    reason = "the service receives the path of each request only in x-original-uri"
    context.draft.ledger.omit(asked, reason, manager.path)
    if typed.get("failure_mode_allow").text == "false":
        context.imply("if the service does not respond, lbctl returns 503", typed.get("failure_mode_allow"))
    if typed.get("failure_mode_allow").text == "true":
        context.omit(
            typed.get("failure_mode_allow"), "if the service does not respond, lbctl returns 503", manager.path
        )
    carried = [each for view in (uri, prefix, sent, accepted) for each in view.all]

    def lay(route: Path) -> None:
        credentials.service(context.draft, route, dict(external), *carried, item.get("name").statement)

    return lay


def _address(cluster: ConfigView) -> tuple[str, str] | None:
    groups = cluster.get("load_assignment", "endpoints")
    sockets = [
        item.get("endpoint", "address", "socket_address") for group in groups for item in group.get("lb_endpoints")
    ]
    return (sockets[0].get("address").text, sockets[0].get("port_value").text) if sockets else None


def _names(view: ConfigView) -> Iterator[str]:
    for pattern in view.get("patterns"):
        if pattern.get("exact"):
            yield pattern.get("exact").text.lower()


def _addresses(context: EnvoyImport, manager: Manager, item: ConfigView) -> Protection | None:
    """Convert a list of addresses to listener settings."""
    rules = item.get("typed_config", "rules")
    action = rules.get("action").text or "ALLOW"
    networks = [_networks(policy) for _, policy in rules.get("policies").fields()]
    key = {"ALLOW": "allow_from", "DENY": "deny_from"}.get(action)
    if key is None or not networks or None in networks or context.draft.get((*manager.path, key)):
        return None
    context.put((*manager.path, key), [each for part in networks for each in part or ()], item)
    return of_the_listener


def of_the_listener(route: Path) -> None:
    """Leave the route unchanged, because its listener protects it."""


def _networks(policy: ConfigView) -> list[str] | None:
    """Return the networks in a policy, or None if it contains anything else."""
    permissions = list(policy.get("permissions"))
    if len(permissions) != 1 or permissions[0].get("any").text != "true" or policy.get("condition"):
        return None
    networks = list[str]()
    for principal in policy.get("principals"):
        for each in list(principal.get("or_ids", "ids")) or [principal]:
            fields = [(name, child) for name, child in each.fields() if name in _NETWORKS]
            if len(fields) != 1 or len(list(each.fields())) != 1:
                return None
            address = fields[0][1].get("address_prefix").text
            whole = 128 if ":" in address else 32
            length = fields[0][1].get("prefix_len").number
            networks.append(f"{address}/{whole if length is None else length}")
    return networks or None


_READERS: dict[str, Callable[[EnvoyImport, Manager, ConfigView], Protection | None]] = {
    "basic_auth": _users,
    "ext_authz": _service,
    "rbac": _addresses,
}

"""Rejects clients by address, in a separate filter that runs before authentication.

The filter uses the address that trusted peers report. A route with separate lists configures them itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy.config.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from google.protobuf.any_pb2 import Any

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Access, Route, access
from lbctl.ir.snapshot import View
from lbctl.targets import client_identity
from lbctl.targets.envoy.protos import cidr, extension, pack

POLICY = "client_address"
"""Policy name that appears in the details of a rejection."""
_FILTER = "lbctl.client_address"


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter if the listener or one of its routes rejects clients."""
    lists = access(listener)
    if not any(item.is_limited for item in (lists, *(lists.of(view.routes[rule.route]) for rule in listener.rules))):
        return []
    return [extension(_FILTER, rbac_filter_pb2.RBAC(rules=_rules(lists)))]


def per_route(listener: Listener, route: Route) -> dict[str, Any]:
    """Return the filter's configuration for a route with separate lists.

    If all lists are empty, no client is rejected.
    """
    lists = access(listener)
    if lists.of(route) == lists:
        return {}
    rules = _rules(lists.of(route))
    return {_FILTER: pack(rbac_filter_pb2.RBACPerRoute(rbac={"rules": rules} if rules else None))}


def _rules(lists: Access) -> rbac_pb2.RBAC | None:
    """Return the policy that matches the clients to reject."""
    principals: list[dict[str, object]] = list(map(_client, _networks(lists.deny)))
    if lists.allow is not None:
        principals.append({"not_id": {"or_ids": {"ids": list(map(_client, _networks(lists.allow)))}}})
    if not principals:
        return None
    policy = rbac_pb2.Policy(permissions=[{"any": True}], principals=principals)
    return rbac_pb2.RBAC(action="DENY", policies={POLICY: policy})


def _networks(networks: Iterable[str]) -> list[str]:
    """Return the networks in the form that Envoy compares. Envoy treats IPv4-mapped addresses as IPv4 addresses."""
    listed = list(client_identity.unmapped_networks(networks))
    return [*listed, *filter(None, map(client_identity.mapped_network, listed))]


def _client(network: str) -> dict[str, object]:
    return {"remote_ip": cidr(network)}

"""Authentication by external services: one filter per service, which all other routes turn off.

Envoy decides which filters to run before it knows a request's final route. The filter is therefore always present, and
the route that the request has at that point turns it off. Envoy queries the service with the client's method, and
appends the client's path to the service's path. The client's path becomes a query parameter, so that the service
receives all queries under one path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import External, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy.protos import address, duration, extension, pack

_ORIGINAL = {"x-original-uri": "%REQ(:PATH)%", "x-original-method": "%REQ(:METHOD)%"}
_CONTEXT = ("x-forwarded-for", *_ORIGINAL)
"""Headers that the service always receives."""


def services(routes: Iterable[Route]) -> dict[str, Route]:
    """Map the name of each filter and cluster to the route that needs it."""
    return {
        f"auth|{route.name}": route
        for route in routes
        if route.auth and route.auth.external and route.needs_credentials
    }


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that query the authorization services of a listener's routes."""
    checks = [extension(name, _check(name, external)) for name, _, external in _of(view, listener)]
    return [_original(), *checks] if checks else []


def per_table(view: View, listener: Listener) -> dict[str, Any]:
    """Return the configuration that turns the filters off for all routes of the table."""
    off = pack(ext_authz_pb2.ExtAuthzPerRoute(disabled=True))
    return {name: off for name, _, _ in _of(view, listener)}


def per_route(route: Route) -> dict[str, Any]:
    """Return the configuration that turns the route's own filter on."""
    on = pack(ext_authz_pb2.ExtAuthzPerRoute(check_settings={}))
    return dict.fromkeys(services([route]), on)


def cluster(name: str, external: External) -> cluster_pb2.Cluster:
    """Return the cluster of a service."""
    endpoint = {"endpoint": {"address": address(external.address)}}
    return cluster_pb2.Cluster(
        name=name,
        type="STATIC",
        connect_timeout=duration(external.timeout),
        load_assignment={"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    )


def own_headers(view: View, listener: Listener) -> list[str]:
    """Return the headers that are added for the services.

    These headers are removed before a replica gets the request.
    """
    return sorted(_ORIGINAL) if any(_of(view, listener)) else []


def _original() -> dict[str, object]:
    """Return the filter that adds headers which describe the original request to the service."""
    mutations = [
        {"append": {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
        for key, value in _ORIGINAL.items()
    ]
    config = header_mutation_pb2.HeaderMutation(mutations={"request_mutations": mutations})
    return extension("envoy.filters.http.header_mutation", config)


def _of(view: View, listener: Listener) -> Iterator[tuple[str, Route, External]]:
    routes = (view.routes[name] for name in sorted({rule.route for rule in listener.rules}))
    for name, route in services(routes).items():
        assert route.auth is not None
        assert route.auth.external is not None
        yield name, route, route.auth.external


def _check(name: str, external: External) -> ext_authz_pb2.ExtAuthz:
    server = {"uri": f"http://{external.address}", "cluster": name, "timeout": duration(external.timeout)}
    answer = {"allowed_client_headers": _exactly(["www-authenticate"])}
    if external.accept:
        answer["allowed_upstream_headers"] = _exactly(external.accept)
    unasked = [item for item in ("authorization",) if item not in external.send]
    return ext_authz_pb2.ExtAuthz(
        transport_api_version="V3",
        http_service={
            "server_uri": server,
            "path_prefix": f"{external.path}?uri=",
            "authorization_response": answer,
        },
        allowed_headers=_exactly([*external.send, *_CONTEXT]),
        disallowed_headers=_exactly(unasked) if unasked else None,
        failure_mode_allow=False,
        status_on_error={"code": "ServiceUnavailable"},
    )


def _exactly(names: Iterable[str]) -> dict[str, object]:
    return {"patterns": [{"exact": name, "ignore_case": True} for name in names]}

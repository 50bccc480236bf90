"""Rules about the headers that routes set."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.header_text import variables
from lbctl.ir.routes import Route
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule


@rule("LB245")
def tenant_of_nobody(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB245: a header with the tenant on a route without tenants."""
    for route in fleet.topology.routes:
        if _names_tenants(route):
            continue
        for side, rules in (("request", route.request_headers), ("response", route.response_headers)):
            for name, text in rules.set:
                if "tenant" in variables(text):
                    path = ("routes", route.name, "headers", side, "set", name)
                    yield RuleFinding(path, "requests of this route have no tenant", "auth, or no {tenant}")


def _names_tenants(route: Route) -> bool:
    auth = route.auth
    if auth is not None and auth.external is not None:
        return auth.external.tenant_header is not None
    return auth is not None and (auth.api_keys is not None or (auth.jwt is not None and bool(auth.jwt.tenant_claim)))

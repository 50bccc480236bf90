"""Rules about the headers that routes set."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.header_text import variables
from lbctl.ir.routes import Route
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import sample

_HEADERS = 'headers: {request: {set: {x-tenant: "{tenant}"}}}'


@rule(
    "LB245",
    "warning",
    "{tenant} where nothing names a tenant",
    what="A header holds `{tenant}` on a route whose requests have none: it has no `auth`, or one of tokens without "
    "`tenant_claim`.",
    why="The variable is empty for every request, and a header that holds nothing else is never sent. Whoever reads it "
    "behind the proxy takes all clients for one.",
    before=sample(routes=f"chat: {{match: {{path_prefix: /v1/chat}}, pool: llama, {_HEADERS}}}\n"),
    after=sample(
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, auth: {api_keys: {file: keys.yaml}}, "
        f"{_HEADERS}}}\n"
    ),
    ignore="One list of headers serves all routes (`defaults`), and this route is open on purpose.",
)
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
    return auth is not None and (auth.api_keys is not None or (auth.jwt is not None and bool(auth.jwt.tenant_claim)))

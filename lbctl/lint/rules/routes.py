"""Rules about routes: patterns that match nothing, pools and routes without requests, headers, and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.ir.header_text import variables
from lbctl.ir.listeners import Rule
from lbctl.ir.routes import PREFLIGHT, Forward, HeaderRules, RateLimit, Route
from lbctl.ir.settings.routes import limit_text
from lbctl.ir.snapshot import divided_limit, instances_of, pools_of
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule

_VARIABLE = re.compile(r"\$[a-z_]{3,}|%\[[a-z]|%[A-Z][A-Z_]{2,}(?:\([^)]*\))?%")
"""Variable in the syntax of nginx, HAProxy or Envoy."""


@rule("LB330")
def literal_star(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report stars in paths that are not regular expressions (LB330)."""
    paths = {(rule.route, rule.path) for listener in fleet.topology.listeners for rule in listener.rules}
    for route, path in sorted((name, item.value) for name, item in paths if item.kind != "regex" and "*" in item.value):
        key = next((key for key in ("path_prefix", "path") if fleet.written(("routes", route, "match", key))), "")
        message = f"{path} matches only paths that contain a star"
        yield RuleFinding(("routes", route, "match", key), message, "use a path_prefix without the star, or path_regex")


@rule("LB331")
def unused_pool(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report pools that no route uses (LB331)."""
    used = {name for route in fleet.topology.routes for name in pools_of(route)}
    for pool in fleet.pools if fleet.topology.routes else ():
        if pool.name not in used:
            yield RuleFinding(("pools", pool.name), "no route uses this pool", "add a route to it, or remove it")


@rule("LB333")
def host_answered_before_paths(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report routes for whole hosts that hide routes without a host (LB333)."""
    actions = {route.name: route.action for route in fleet.topology.routes}
    for listener in fleet.topology.listeners:
        passed_over = sorted(
            {item.route for item in listener.rules if not item.host and isinstance(actions[item.route], Forward)}
        )
        for item in listener.rules if passed_over else ():
            answers = not isinstance(actions[item.route], Forward)
            if answers and item.host and item == Rule(item.route, host=item.host):
                names = ", ".join(passed_over)
                message = f"on listener {listener.name}, no request to {item.host} reaches {names}"
                hint = "add a path or `listeners` to this route, or add the host to those routes"
                yield RuleFinding(("routes", item.route, "match", "hosts"), message, hint)


@rule("LB334")
def foreign_preflights(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report open routes whose preflights are answered with the headers of another route (LB334)."""
    routes = {route.name: route for route in fleet.topology.routes}
    found: dict[str, str] = {}
    for listener in fleet.topology.listeners:
        answered = {(item.host, item.path): item.route for item in listener.rules if item.route.endswith(PREFLIGHT)}
        for item in listener.rules:
            owner, route = answered.get((item.host, item.path), ""), routes[item.route]
            by_content = item.models or item.headers or item.methods
            is_open = isinstance(route.action, Forward) and route.auth is None
            if owner and is_open and not by_content and _origin(route) != _origin(routes[owner]):
                found.setdefault(route.name, owner.removesuffix(PREFLIGHT))
    for name, owner in found.items():
        message = f"preflights for these paths are answered by route {owner}, so none reaches a replica"
        hint = "set the same access-control-allow-origin in both routes, or add a route with `methods: [OPTIONS]`"
        yield RuleFinding(("routes", name, "match"), message, hint)


def _origin(route: Route) -> str:
    return dict(route.response_headers.set).get("access-control-allow-origin", "")


@rule("LB332")
def literal_variable(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report header values that look like variables of a proxy (LB332)."""
    for route in fleet.topology.routes:
        for side, rules in (("request", route.request_headers), ("response", route.response_headers)):
            for name, variable in _variables(rules):
                path = ("routes", route.name, "headers", side, "set", name)
                message = f"{variable} is not an lbctl variable, so the header contains it as plain text"
                yield RuleFinding(path, message, "use an lbctl variable, for example {client_ip}")


def _variables(rules: HeaderRules) -> Iterator[tuple[str, str]]:
    """Yield each header whose value contains a variable, and the variable."""
    for name, value in rules.set:
        variable = _VARIABLE.search(value)
        if variable:
            yield name, variable[0]


@rule("LB245")
def tenant_of_nobody(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report headers that contain the tenant on routes without tenants (LB245)."""
    for route in fleet.topology.routes:
        if route.auth is not None and route.auth.names_tenant:
            continue
        for side, rules in (("request", route.request_headers), ("response", route.response_headers)):
            for name, text in rules.set:
                if "tenant" in variables(text):
                    path = ("routes", route.name, "headers", side, "set", name)
                    yield RuleFinding(path, "requests on this route have no tenant", "add auth, or remove {tenant}")


_MIN_REQUESTS = 10
"""Minimum number of requests that one proxy should admit from a client, by rate or concurrently."""


@rule("LB533")
def divided_limit_of_a_client(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report per-client limits that are too small when divided among the proxies (LB533)."""
    for route in fleet.topology.routes:
        instances = instances_of(fleet.topology, frozenset(route.listeners))
        for index, limit in enumerate(route.rate_limits):
            if instances > 1 and limit.by != "all":
                yield from _limit_finding(route, index, limit, divided_limit(limit, instances), instances)


def _limit_finding(
    route: Route, index: int, limit: RateLimit, divided: RateLimit, instances: int
) -> Iterator[RuleFinding]:
    if (divided.concurrent or divided.requests) < _MIN_REQUESTS:
        key = "concurrent" if limit.concurrent else "rate"
        whole, piece = (limit_text(item).partition(": ")[2] for item in (limit, divided))
        message = f"each of the {instances} proxy instances allows only {piece} of the fleet's limit of {whole}"
        hint = "raise the limit, because a client may reach only one instance, or reduce `instances`"
        yield RuleFinding(("routes", route.name, "rate_limit", index, key), message, hint)

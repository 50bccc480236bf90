"""Rules about what nothing comes of: texts that only look like patterns, unused pools, routes that are passed over."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.ir.listeners import Rule
from lbctl.ir.routes import PREFLIGHT, Forward, HeaderRules, Route
from lbctl.ir.snapshot import pools_of
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import TWO, sample

_VARIABLE = re.compile(r"\$[a-z_]{3,}|%\[[a-z]|%[A-Z][A-Z_]{2,}(?:\([^)]*\))?%")
"""A variable in the grammar of nginx, HAProxy or Envoy."""
_SPARE = "spare:\n  replicas:\n" + "".join(f"    {line}\n" for line in TWO.replace("10.0.0", "10.0.1").splitlines())


_ANSWERED = "moved: {match: {hosts: [old.example.com]}, respond: {redirect: https}}\n"
_ALLOWED = 'headers: {response: {set: {access-control-allow-origin: "https://app.example.com"}}}'
_SHARED = f"small: {{match: {{path_prefix: /v1/chat, model: [small]}}, pool: llama, {_ALLOWED}}}\n"


def _route(text: str) -> str:
    return f"chat: {{match: {{path_prefix: /v1/chat}}, pool: llama{text}}}\n"


@rule(
    "LB330",
    "warning",
    "a star that is plain text",
    what="A `path_prefix` or a `path` of a route contains a `*`.",
    why="Paths are compared as written: `/v1/*` matches requests whose path has a star, and no other. A prefix needs "
    "no star to match what is below it.",
    before=sample(routes='chat: {match: {path_prefix: "/v1/*"}, pool: llama}\n'),
    after=sample(routes="chat: {match: {path_prefix: /v1}, pool: llama}\n"),
    ignore="The path truly has a star.",
)
def literal_star(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB330: stars in paths that are no expressions."""
    paths = {(rule.route, rule.path) for listener in fleet.topology.listeners for rule in listener.rules}
    for route, path in sorted((name, item.value) for name, item in paths if item.kind != "regex" and "*" in item.value):
        key = next((key for key in ("path_prefix", "path") if fleet.written(("routes", route, "match", key))), "")
        message = f"{path} matches only paths with a star"
        yield RuleFinding(("routes", route, "match", key), message, "a path_prefix without the star, or path_regex")


@rule(
    "LB331",
    "warning",
    "a pool that no route uses",
    what="No route sends requests to a pool: not by `pool` or `split`, nor by `pin`, `fallback` or `mirror`.",
    why="Its replicas hold GPUs that get no request, and this is not noticed until the others are full.",
    before=sample(pools=_SPARE),
    after=sample(pools=_SPARE, routes=_route(", fallback: spare")),
    ignore="A route to it comes with the next change.",
)
def unused_pool(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB331: pools that no route names."""
    used = {name for route in fleet.topology.routes for name in pools_of(route)}
    for pool in fleet.pools if fleet.topology.routes else ():
        if pool.name not in used:
            yield RuleFinding(("pools", pool.name), "no route uses this pool", "a route to it, or remove it")


@rule(
    "LB333",
    "note",
    "a host that is answered before any path",
    what="On a listener the proxy itself answers all requests to a host, by `respond` without a path, and other routes "
    "of the listener name no host.",
    why="A host decides before a path, whatever the order of the routes. So for this host the other routes are never "
    "reached, which is meant where the listener only redirects, and is a surprise where it serves.",
    before=sample(routes=_route("") + _ANSWERED),
    after=sample(routes=_route("") + _ANSWERED.replace("{hosts", "{path: /, hosts")),
    ignore="The whole host is to be answered so.",
)
def host_answered_before_paths(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB333: answers to whole hosts, which routes without a host are never asked for."""
    actions = {route.name: route.action for route in fleet.topology.routes}
    for listener in fleet.topology.listeners:
        passed_over = sorted(
            {item.route for item in listener.rules if not item.host and isinstance(actions[item.route], Forward)}
        )
        for item in listener.rules if passed_over else ():
            answers = not isinstance(actions[item.route], Forward)
            if answers and item.host and item == Rule(item.route, host=item.host):
                names = ", ".join(passed_over)
                message = f"on {listener.name} no request to {item.host} reaches {names}"
                hint = "a path beside the host, `listeners`, or the host in those routes too"
                yield RuleFinding(("routes", item.route, "match", "hosts"), message, hint)


@rule(
    "LB334",
    "note",
    "preflights that another route answers",
    what="Two routes have the same host and path. The proxy answers preflights there for the one that sets "
    "`access-control-allow-origin`; the other one needs no key, and sets another origin or none.",
    why="A preflight has neither a key nor a body, so nothing in it names the route of the request that follows. "
    "Replicas that answer preflights themselves get none on this path.",
    before=sample(routes=_route("") + _SHARED),
    after=sample(routes=_route(f", {_ALLOWED}") + _SHARED),
    ignore="Browsers use only the route whose preflights are answered.",
)
def foreign_preflights(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB334: open routes whose preflights are answered with the headers of another route."""
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
        message = f"preflights for these paths are answered for {owner}: none reaches a replica"
        hint = "the same access-control-allow-origin in both, or a route with `methods: [OPTIONS]`"
        yield RuleFinding(("routes", name, "match"), message, hint)


def _origin(route: Route) -> str:
    return dict(route.response_headers.set).get("access-control-allow-origin", "")


@rule(
    "LB332",
    "warning",
    "a variable that no proxy fills in",
    what="The value of a header that a route sets has a variable in the grammar of nginx (`$upstream_addr`), HAProxy "
    "(`%[src]`) or Envoy (`%UPSTREAM_HOST%`).",
    why="Values are texts, quoted for each proxy, so that they mean the same on all three: the header then holds the "
    "name of the variable. What a value may hold is `{client_ip}`, `{request_id}`, `{tenant}`, `{host}`, `{listener}`, "
    "`{route}` and `{pool}`.",
    before=sample(routes=_route(', headers: {response: {set: {x-replica: "$upstream_addr"}}}')),
    after=sample(routes=_route(", headers: {response: {set: {x-gateway: lbctl}}}")),
    ignore="The header is to hold exactly this text.",
)
def literal_variable(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB332: values of headers that look like variables of a proxy."""
    for route in fleet.topology.routes:
        for side, rules in (("request", route.request_headers), ("response", route.response_headers)):
            for name, variable in _variables(rules):
                path = ("routes", route.name, "headers", side, "set", name)
                yield RuleFinding(path, f"{variable} stays as it is: it is no variable of lbctl's", "as {client_ip}")


def _variables(rules: HeaderRules) -> Iterator[tuple[str, str]]:
    """Yield each header that is set to a value with a variable, and the variable."""
    for name, value in rules.set:
        variable = _VARIABLE.search(value)
        if variable:
            yield name, variable[0]

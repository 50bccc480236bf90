"""Rules about included lines: the order in which they run, and the settings that they override."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.own_lines import OwnLines
from lbctl.ir.proxies import Proxy
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.targets.haproxy import own_lines as haproxy
from lbctl.targets.nginx import own_lines as nginx
from lbctl.targets.nginx.own_lines import Directive

_REWRITES = frozenset(("return", "rewrite", "if", "set"))
_CHOOSES = frozenset(("use_backend", "default_backend"))


@rule("LB240")
def own_lines_before_credentials(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report rewrite-phase directives at the server level (LB240)."""
    if not any(route.auth or route.allow_from or route.deny_from for route, _ in fleet.forwards):
        return
    for proxy, item in _own_lines(fleet, "server"):
        for directive in _directives(item):
            if directive.name in _REWRITES:
                message = f"`{directive.name}` ({item.file}:{directive.line}) runs before any credentials are checked"
                yield RuleFinding(_path(proxy, item), message, "include: {location: {ROUTE: […]}}")
                break


@rule("LB241")
def own_lines_before_limits(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report responses and backend choices that bypass limits (LB241)."""
    for proxy, item in (*_own_lines(fleet, "location"), *_own_lines(fleet, "frontend")):
        for name, line in _named(item):
            if name in (_CHOOSES if item.place == "frontend" else {"return", "rewrite"}):
                message = f"`{name}` ({item.file}:{line}) bypasses the limits"
                yield RuleFinding(_path(proxy, item), message, "use a route with `respond`, or a pool of the fleet")
                break


@rule("LB242")
def own_lines_drop_headers(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report `add_header` in a location (LB242)."""
    for proxy, item in _own_lines(fleet, "location"):
        for directive in _directives(item):
            if directive.name == "add_header":
                message = (
                    f"`add_header` ({item.file}:{directive.line}) removes the headers that the server adds, "
                    "including x-request-id"
                )
                hint = "set headers: {response: {set: {NAME: …}}} on the route"
                yield RuleFinding(_path(proxy, item), message, hint)
                break


def _own_lines(fleet: FleetView, place: str) -> Iterator[tuple[Proxy, OwnLines]]:
    for proxy in fleet.topology.proxies:
        yield from ((proxy, item) for item in proxy.include if item.place == place)


def _directives(item: OwnLines) -> Iterator[Directive]:
    yield from (each for each in nginx.directives(item.text) if isinstance(each, Directive))


def _named(item: OwnLines) -> Iterator[tuple[str, int]]:
    if item.place == "frontend":
        yield from ((line.keyword, line.number) for line in haproxy.lines(item.text))
    else:
        yield from ((directive.name, directive.line) for directive in _directives(item))


def _path(proxy: Proxy, item: OwnLines) -> Path:
    return item.path(proxy.name)

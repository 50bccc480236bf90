"""Rules about own lines: what runs before and after them, and what they take away."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.own_lines import OwnLines
from lbctl.ir.proxies import Proxy
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule
from lbctl.lint.sample import LLM, sample
from lbctl.targets.haproxy import own_lines as haproxy
from lbctl.targets.nginx import own_lines as nginx
from lbctl.targets.nginx.own_lines import Directive

_REWRITES = frozenset(("return", "rewrite", "if", "set"))
_CHOOSES = frozenset(("use_backend", "default_backend"))
_GUARDED = 'chat: {match: {path_prefix: /v1/chat}, pool: llama, allow_from: ["10.0.0.0/8"]}\n'
_PLAIN = "chat: {match: {path_prefix: /v1/chat}, pool: llama}\n"
_FILES = """\
# own/answers.conf holds return 403;
# own/adds.conf holds add_header X-Site lbctl;
# own/headers.conf holds proxy_set_header X-Site lbctl;
"""


def _site(include: str, routes: str = _PLAIN) -> str:
    return sample(LLM, routes=routes, more=f"proxies:\n  site: {{kind: nginx, include: {include}}}\n{_FILES}")


@rule(
    "LB240",
    "warning",
    "own lines before the credentials",
    what="Own lines at nginx's `server` rewrite or answer requests (`return`, `rewrite`, `if`, `set`), and a route of "
    "the fleet asks for credentials or refuses addresses.",
    why="nginx runs these directives of a server before it chooses a location: before lbctl refuses ambiguous paths, "
    "checks addresses and credentials, and counts limits. A `return` there answers everybody, and a `rewrite` can lead "
    "a request to another route than the one whose credentials it needs.",
    before=_site("{server: {gateway: [own/answers.conf]}}", routes=_GUARDED),
    after=_site("{location: {chat: [own/headers.conf]}}", routes=_GUARDED),
    ignore="The lines answer what everybody may ask, such as a path for the host's own checks.",
)
def own_lines_before_credentials(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB240: directives of the rewrite phase in a server."""
    if not any(route.auth or route.allow_from or route.deny_from for route, _ in fleet.forwards):
        return
    for proxy, item in _own_lines(fleet, "server"):
        for directive in _directives(item):
            if directive.name in _REWRITES:
                message = f"`{directive.name}` ({item.file}:{directive.line}) runs before any credentials are checked"
                yield RuleFinding(_path(proxy, item), message, "include: {location: {ROUTE: […]}}")
                break


@rule(
    "LB241",
    "warning",
    "own lines before the limits",
    what="Own lines answer a request or choose its backend themselves: nginx's `return` or `rewrite` in a location, "
    "HAProxy's `use_backend` or `default_backend` in a frontend.",
    why="Credentials come before these lines, limits after them. nginx answers a `return` before it counts the "
    "request, so no rate limit holds; a backend that HAProxy chooses here has none of the pool's limits, health and "
    "log fields.",
    before=_site("{location: {chat: [own/answers.conf]}}"),
    after=_site("{location: {chat: [own/headers.conf]}}"),
    ignore="No limit is meant to hold for what they answer.",
)
def own_lines_before_limits(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB241: answers and choices that pass limits by."""
    for proxy, item in (*_own_lines(fleet, "location"), *_own_lines(fleet, "frontend")):
        for name, line in _named(item):
            if name in (_CHOOSES if item.place == "frontend" else {"return", "rewrite"}):
                message = f"`{name}` ({item.file}:{line}) passes the limits by"
                yield RuleFinding(_path(proxy, item), message, "a route with `respond`, or a pool of the fleet")
                break


@rule(
    "LB242",
    "warning",
    "own lines take response headers away",
    what="Own lines of a location use `add_header`.",
    why="nginx takes the headers of the server only where a location adds none: with one `add_header` of your own the "
    "answer loses its request id, by which logs of clients, proxies and engines are joined.",
    before=_site("{location: {chat: [own/adds.conf]}}"),
    after=_site("{location: {chat: [own/headers.conf]}}"),
    ignore="Clients do not use the request ids of answers.",
)
def own_lines_drop_headers(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB242: add_header in a location."""
    for proxy, item in _own_lines(fleet, "location"):
        for directive in _directives(item):
            if directive.name == "add_header":
                message = f"`add_header` ({item.file}:{directive.line}) replaces those of the server, x-request-id too"
                hint = "the route's headers: {response: {set: {NAME: …}}}"
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

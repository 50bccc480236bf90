"""Adds responses to CORS preflights, which a browser sends to find out whether a page may send another request.

A preflight carries neither credentials nor a body, so a route that needs them would reject it. If such a route allows
an origin in its response headers, the proxy itself answers preflights for its paths. A route without a pool then
receives every OPTIONS request there, and replicas receive none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from lbctl.ir.header_text import variables
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import order
from lbctl.ir.routes import PREFLIGHT, HeaderRules, Redirect, Respond, Route

_OPTIONS = "OPTIONS"
_PREFIX = "access-control-"
_ORIGIN = f"{_PREFIX}allow-origin"
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADERS = ("*", "authorization", "content-type", "x-api-key", "x-model")
"""Allowed request headers. The wildcard covers all headers except `authorization`, in requests without cookies."""


def with_preflights(
    listeners: Sequence[Listener], routes: Sequence[Route]
) -> tuple[tuple[Listener, ...], tuple[Route, ...]]:
    """Return the listeners and the routes, including added routes that answer preflights."""
    by_name = {route.name: route for route in routes}
    tables = [_with_preflights(listener, by_name) for listener in listeners]
    used = {rule.route for table in tables for rule in table.rules} - by_name.keys()
    answers = [_answer(route) for route in routes if route.name + PREFLIGHT in used]
    return tuple(tables), tuple(sorted((*routes, *answers), key=lambda route: route.name)) if answers else tuple(routes)


def _with_preflights(listener: Listener, routes: dict[str, Route]) -> Listener:
    added = list(_rules(listener, routes))
    return replace(listener, rules=tuple(sorted((*listener.rules, *added), key=order))) if added else listener


def _rules(listener: Listener, routes: dict[str, Route]) -> Iterator[Rule]:
    answered = {(rule.host, rule.path) for rule in listener.rules if _OPTIONS in rule.methods}
    for rule in listener.rules:
        if (rule.host, rule.path) not in answered and rule.route in routes and _misses(rule, routes[rule.route]):
            answered.add((rule.host, rule.path))
            yield Rule(rule.route + PREFLIGHT, rule.host, rule.path, (_OPTIONS,))


def _misses(rule: Rule, route: Route) -> bool:
    """Return whether a route for browsers fails to answer a preflight correctly."""
    if isinstance(route.action, Redirect) or all(name != _ORIGIN for name, _ in route.response_headers.set):
        return False
    by_content = bool(rule.models or rule.headers or rule.methods)
    return route.auth is not None or by_content or isinstance(route.action, Respond)


def _answer(route: Route) -> Route:
    return Route(
        name=route.name + PREFLIGHT,
        action=Respond(204),
        listeners=route.listeners,
        allow_from=route.allow_from,
        deny_from=route.deny_from,
        logged=route.logged,
        response_headers=HeaderRules(tuple(sorted(_headers(route).items()))),
    )


def _headers(route: Route) -> dict[str, str]:
    return {
        f"{_PREFIX}allow-methods": _METHODS,
        f"{_PREFIX}allow-headers": ", ".join(dict.fromkeys((*_HEADERS, *_key_headers(route)))),
        **dict(_own(route.response_headers.set)),
    }


def _key_headers(route: Route) -> Iterable[str]:
    return route.auth.api_keys.headers if route.auth and route.auth.api_keys else ()


def _own(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the headers that concern origins.

    Headers that name the pool or the tenant are omitted, because a preflight has neither.
    """
    for name, text in headers:
        if (name.startswith(_PREFIX) or name == "vary") and not variables(text) & {"pool", "tenant"}:
            yield name, text

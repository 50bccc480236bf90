"""nginx's own responses: their bodies, as the templates insert them, and the response headers that routes set on them.

nginx itself can respond with the statuses 401, 403, 413, 429, 502, 503 and 504. All routes share their locations, so
each header has a variable that depends on the route. Without its CORS headers, a browser would hide a response's status
from the page.
"""

from __future__ import annotations

import json

from lbctl.ir.header_text import variables
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, access
from lbctl.targets import client_identity, request_grammar
from lbctl.targets.nginx import header_text, quote
from lbctl.targets.nginx.render_context import ListenerScope, RenderContext
from lbctl.targets.response_bodies import NO_REPLICA, NO_ROUTE, OVERLOADED, UNKNOWN_MODEL, error_body, model_not_found
from lbctl.targets.token import Token

_WRITTEN_BY_REPLIES = frozenset({"content-type", "retry-after", "www-authenticate"})


def _quoted(body: str) -> Token:
    return Token(f"'{body}'")


ERRORS = {
    name: _quoted(body)
    for name, body in {
        "ambiguous_path": error_body(request_grammar.TARGET_MESSAGE, "bad_request"),
        "body_too_large": error_body("the request body is too large", "too_large"),
        "broke_off": error_body("the replica aborted its response", "bad_gateway"),
        "client_certificate": error_body("a valid client certificate is required", "bad_request"),
        "complex_path": error_body("the path is too complex to match", "bad_request"),
        "headers_too_large": error_body("the request headers are too large", "too_large"),
        "malformed": error_body("the request is not valid HTTP", "bad_request"),
        "malformed_host": error_body(request_grammar.HOST_MESSAGE, "bad_request"),
        "no_credentials": error_body("no valid credentials", "unauthorized"),
        "no_replica": NO_REPLICA,
        "no_model": model_not_found(
            "the request names no model: send it in the x-model header, because the body is not read"
        ),
        "no_route": NO_ROUTE,
        "no_upgrade": error_body("this route does not accept WebSocket connections", "bad_request"),
        "not_allowed": error_body("this request is not allowed", "forbidden"),
        "refused_address": client_identity.REFUSED_ADDRESS_BODY,
        "several_addresses": error_body("the request contains several client addresses", "bad_request"),
        "unknown_model": UNKNOWN_MODEL,
        "overloaded": OVERLOADED,
        "too_many_requests": error_body("too many requests", "rate_limited"),
        "went_silent": error_body("the replica did not respond in time", "timeout"),
    }.items()
}
"""Maps each name to the quoted body."""


def headers_of(context: RenderContext, listener: Listener, scope: ListenerScope) -> tuple[tuple[Token, Token], ...]:
    """Return the headers that the listener's routes set on nginx's own responses:

    (name, variable) pairs, sorted by name.
    """
    values = _values(context)
    routes = {rule.route for rule in listener.rules}
    return tuple(
        (quote.plain(name), _variable(context, scope, number, value_by_route))
        for number, (name, value_by_route) in enumerate(sorted(values.items()))
        if routes & value_by_route.keys()
    )


def _values(context: RenderContext) -> dict[str, dict[str, str]]:
    """Map each header name and route to the value, for all routes on which nginx itself may respond."""
    values: dict[str, dict[str, str]] = {}
    lists = [access(listener) for listener in context.view.listeners]
    for route in context.view.routes.values():
        replaced = isinstance(route.action, Forward) or any(item.of(route).is_limited for item in lists)
        for name, text in route.response_headers.set if replaced else ():
            if name not in _WRITTEN_BY_REPLIES:
                values.setdefault(name, {})[route.name] = text
    return values


def _variable(context: RenderContext, scope: ListenerScope, number: int, value_by_route: dict[str, str]) -> Token:
    """Return the variable for a header. If its value depends on the listener, each listener has its own variable."""
    suffix = f"_{scope.number}" if any(map(variables, value_by_route.values())) else ""
    variable = f"$lb_own{number}{suffix}"
    if not context.has_map(variable):
        entries = (
            (quote.plain(json.dumps(name)), header_text.token(context, scope, context.view.routes[name], None, text))
            for name, text in value_by_route.items()
        )
        context.map("$lb_route", variable, ((Token("default"), Token('""')), *entries))
    return Token(variable)

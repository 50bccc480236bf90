"""The response headers that a route sets, for nginx's answers in its place: 401, 403, 413, 429, 502, 503, 504.

All routes share the locations of these answers, so each header there has a variable that depends on the route. Without
its CORS headers a browser would hide the status of such an answer from the page.
"""

from __future__ import annotations

import json

from lbctl.ir.header_text import variables
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, access
from lbctl.targets.nginx import header_text, quote
from lbctl.targets.nginx.inlet import Inlet
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

_WRITTEN_BY_ANSWERS = frozenset({"content-type", "retry-after", "www-authenticate"})


def of(context: RenderContext, listener: Listener, inlet: Inlet) -> tuple[tuple[Token, Token], ...]:
    """Return the name of each such header of the listener's routes and its variable, sorted by name."""
    values = _values(context)
    routes = {rule.route for rule in listener.rules}
    return tuple(
        (quote.plain(name), _variable(context, inlet, number, value_by_route))
        for number, (name, value_by_route) in enumerate(sorted(values.items()))
        if routes & value_by_route.keys()
    )


def _values(context: RenderContext) -> dict[str, dict[str, str]]:
    """Return name of a header → route → value, for all routes in whose place nginx may answer."""
    values: dict[str, dict[str, str]] = {}
    lists = [access(listener) for listener in context.view.listeners]
    for route in context.view.routes.values():
        replaced = isinstance(route.action, Forward) or any(item.of(route).is_limited for item in lists)
        for name, text in route.response_headers.set if replaced else ():
            if name not in _WRITTEN_BY_ANSWERS:
                values.setdefault(name, {})[route.name] = text
    return values


def _variable(context: RenderContext, inlet: Inlet, number: int, value_by_route: dict[str, str]) -> Token:
    """Return the variable of a header; each listener has its own where its value depends on the listener."""
    suffix = f"_{inlet.number}" if any(map(variables, value_by_route.values())) else ""
    variable = f"$lb_own{number}{suffix}"
    if not context.has_map(variable):
        entries = (
            (quote.plain(json.dumps(name)), header_text.token(context, inlet, context.view.routes[name], None, text))
            for name, text in value_by_route.items()
        )
        context.map("$lb_route", variable, ((Token("default"), Token('""')), *entries))
    return Token(variable)

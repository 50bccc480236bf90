"""The headers that a route sets, with their variables converted to nginx variables."""

from __future__ import annotations

import json

from lbctl.base.diagnostics import Path
from lbctl.ir.header_text import Variable, parts, variables
from lbctl.ir.routes import Route
from lbctl.targets.nginx import auth, quote
from lbctl.targets.nginx.render_context import ListenerScope, RenderContext
from lbctl.targets.token import Token

_POOL = "$lb_pool_name"


def token(
    context: RenderContext, scope: ListenerScope, route: Route, pool: str | None, text: str, source: Path = ()
) -> Token:
    """Return a header's value for requests of `route` to `pool`; None: to any pool."""
    used = variables(text)
    if not used:
        return quote.value(text, source)
    values = {name: _value(context, scope, route, pool, name) for name in used}
    written = (quote.embed(part.text) if part.variable is None else values[part.variable] for part in parts(text))
    return quote.script("".join(written), source)


def _value(context: RenderContext, scope: ListenerScope, route: Route, pool: str | None, name: Variable) -> str:
    match name:
        case "client_ip":
            return "${remote_addr}"
        case "request_id":
            return _braced(scope.request_id)
        case "tenant":
            tenant = auth.tenant(context, route, list(context.view.routes).index(route.name))
            return _braced(tenant.text) if tenant else ""
        case "host":
            return "${lb_host}"
        case "listener":
            return scope.listener
        case "route":
            return route.name
        case "pool":
            return _pool(context) if pool is None else pool


def _braced(variable: str) -> str:
    """Return the variable in a form that can be followed by letters."""
    return f"${{{variable.removeprefix('$')}}}"


def _pool(context: RenderContext) -> str:
    """Return the variable that contains the name of the request's pool."""
    if not context.has_map(_POOL):
        entries = ((quote.plain(json.dumps(name)), quote.plain(name)) for name in context.view.pools)
        context.map("$lb_pool", _POOL, ((Token("default"), Token('""')), *entries))
    return _braced(_POOL)

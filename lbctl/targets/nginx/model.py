"""Where nginx finds the model of a request: the header x-model, else the query of a GET. It reads no body."""

from __future__ import annotations

from lbctl.targets.nginx import quote
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

HEADER = "$http_x_model"
_QUERY = "$lb_query_model"


def in_query(context: RenderContext) -> str:
    """Return the variable with the model in the query of a GET, as it was sent; it is empty next to the header."""
    if not context.has_map(_QUERY):
        entries = ((Token("default"), Token('""')), (quote.plain("~^GET\\n\\z"), Token("$arg_model")))
        context.map(f"$request_method\n{HEADER}", _QUERY, entries)
    return _QUERY

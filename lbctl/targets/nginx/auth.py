"""API keys: the key of a request determines its tenant, and a request without a valid key is rejected.

The keys are in a separate file, included by name (`key_table`). nginx cannot compute SHA-256, so keys of which only the
hash is known are rejected.
"""

from __future__ import annotations

import json
from functools import partial

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import ApiKeys, Route
from lbctl.targets import key_hashes, websocket_key
from lbctl.targets.client_identity import BEARER, challenge, given
from lbctl.targets.nginx import external, key_table, names, quote
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.target import File
from lbctl.targets.token import Token

_PROTOCOLS = f"$http_{websocket_key.HEADER.replace('-', '_')}"
_PROTOCOL_KEY, _OTHER_PROTOCOLS = "$lb_protocol_key", "$lb_other_protocols"


def tenant(context: RenderContext, route: Route, number: int) -> Token | None:
    """Return the variable for the tenant, empty without a valid key or response; None if the route has no tenant."""
    if route.auth is not None and route.auth.external is not None:
        return external.tenant(route.auth.external, number)
    if route.auth is None or route.auth.api_keys is None:
        return None
    variable = f"$lb_r{number}_tenant"
    if not context.has_map(variable):
        _keys(context, route, route.auth.api_keys, variable)
    return Token(variable)


def forwarded(context: RenderContext, route: Route, number: int) -> dict[str, Token]:
    """Map each request header that authentication adds or removes to its value.

    The tenant is forwarded if the route configures it; a client's own header of that name is always removed.
    """
    headers = {name: Token('""') for name in given(context.view.routes.values())}
    auth = route.auth
    if auth is None:
        return headers
    headers |= external.forwarded(route, number)
    if auth.external is not None and not auth.forward_credentials:
        headers["authorization"] = Token('""')
    if auth.external is not None and auth.external.tenant_header is not None and auth.forward_tenant is not None:
        headers[auth.forward_tenant.lower()] = headers[auth.external.tenant_header]
    if auth.api_keys is not None and not auth.forward_credentials:
        headers |= {name: Token('""') for name in auth.api_keys.headers}
        if auth.api_keys.websocket_protocol:
            headers[websocket_key.HEADER] = _other_protocols(context)
    tenant_variable = tenant(context, route, number)
    if auth.forward_tenant is not None and tenant_variable is not None:
        headers[auth.forward_tenant.lower()] = tenant_variable
    return headers


def _keys(context: RenderContext, route: Route, accepted: ApiKeys, variable: str) -> None:
    path = ("routes", route.name, "auth", "api_keys")
    source = _source(context, route, accepted, variable)
    keys = context.view.api_keys.get(route.name, ()) if source is not None else ()
    hashes = key_hashes.of_route(route.name, keys)
    if hashes is not None:
        context.add(key_hashes.warning("nginx", hashes))
    table = key_table.table(item for item in keys if item.key)
    if table.refused:
        message = (
            f"nginx rejects {table.refused} of {len(keys)} keys: too many keys end with the same {key_table.END} "
            "characters"
        )
        context.warn(
            "route.auth.api_keys", (*path, "file"), message, "replace them with random keys: lbctl key new TENANT"
        )
    name = f"nginx-api-keys-{route.name}.map"
    context.files.append(File(name, "".join(table.lines), secret=True))
    scheme = "(?:(?i:bearer) ++)?" if accepted.realm is None else "(?i:basic) ++"
    included = quote.plain(names.included(name, context.view.proxy))
    key_table.add_maps(context, source or "", variable, scheme=scheme, file=included, size=len(table.lines))


def _source(context: RenderContext, route: Route, accepted: ApiKeys, variable: str) -> str | None:
    """Return the variable that contains the first accepted header of a request; None if nginx drops all of them."""
    sources: list[str] = []
    for name in accepted.headers:
        source = names.header(name)
        if source is None:
            path = ("routes", route.name, "auth", "api_keys", "headers")
            context.warn(
                "route.auth.api_keys",
                path,
                f"nginx drops headers named {name}, so keys in this header are ignored",
            )
        else:
            sources.append(source)
    if accepted.websocket_protocol:
        sources.append(_key_in_protocols(context))
    first = sources.pop() if sources else None
    for index, source in reversed(list(enumerate(sources))):
        assert first is not None
        entries = ((Token("default"), Token(source)), (Token('""'), Token(first)))
        first = context.map(source, f"{variable.removesuffix('_tenant')}_key{index}", entries)
    return first


def _key_in_protocols(context: RenderContext) -> str:
    """Return the variable that contains the key from a WebSocket's subprotocols."""
    if not context.has_map(_PROTOCOL_KEY):
        key = names.group(_PROTOCOL_KEY, websocket_key.KEY)
        pattern = quote.plain(f"~*^websocket\\n{websocket_key.BEFORE}{key}{websocket_key.BEHIND}")
        entries = ((Token("default"), Token('""')), (pattern, Token(names.captured(_PROTOCOL_KEY))))
        context.map(f"$http_upgrade\n{_PROTOCOLS}", _PROTOCOL_KEY, entries)
    return _PROTOCOL_KEY


def _other_protocols(context: RenderContext) -> Token:
    """Return the variable that contains a WebSocket's subprotocols without the key; empty if it has several keys."""
    if not context.has_map(_OTHER_PROTOCOLS):
        item, space = f"{websocket_key.ITEM}[.][^,]*", "[[:space:]]*"
        group, captured = partial(names.group, _OTHER_PROTOCOLS), partial(names.captured, _OTHER_PROTOCOLS)
        entries = (
            (Token("default"), Token(_PROTOCOLS)),
            (quote.plain(f"~*(?:^|,){space}{item},(?:.*,)?{space}{item}"), Token('""')),
            (quote.plain(f"~*^{space}{item}(?:,{space}{group('.*', '_rest')})?$"), Token(captured("_rest"))),
            (
                quote.plain(f"~*^{group('.*?', '_front')}{space},{space}{item}{group('(?:,.*)?', '_back')}$"),
                quote.script(captured("_front") + captured("_back")),
            ),
        )
        context.map(_PROTOCOLS, _OTHER_PROTOCOLS, entries)
    return Token(_OTHER_PROTOCOLS)


def challenges(context: RenderContext, listener: Listener) -> Token:
    """Return the challenge of a listener's 401: its text, or a variable if routes differ."""
    routes = [context.view.routes[name] for name in sorted({rule.route for rule in listener.rules})]
    if all(challenge(route.auth) == BEARER for route in routes):
        return Token(BEARER)
    entries = ((quote.plain(json.dumps(item.name)), quote.value(challenge(item.auth))) for item in routes if item.auth)
    variable = f"$lb_challenge{context.view.listeners.index(listener)}"
    return Token(context.map("$lb_route", variable, ((Token("default"), Token(BEARER)), *entries)))

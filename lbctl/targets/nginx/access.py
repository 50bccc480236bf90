"""Rejects clients by address, which trusted peers may report (the real-IP module)."""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Access, Route, access
from lbctl.targets.nginx import quote
from lbctl.targets.nginx.blocks import Geo
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

READS_ALL_LINES = "x-forwarded-for"
"""The only header of which the real-IP module reads every line. The module reads only the first line of any other
header."""
_JOINS_HEADERS = (1, 23, 0)
"""First version in which a variable `$http_name` contains all lines of a header; earlier versions contain only the
first."""
_LINES = "$http_x_forwarded_for"
"""All lines of the header, joined by a comma and a space."""
_UNREAD = r"^1\n(?:.*, )?,[^ ,]"
"""Matches a trusted peer's line that begins with a comma and an address. The real-IP module would treat the peer as the
client."""
_CLIENT = Token("$remote_addr")
_UNREADABLE = "255.255.255.255/32"
"""A network that no client address belongs to. nginx ignores it."""
_NO_ADDRESS = Token("255.255.255.254/31")
"""A network that contains the address nginx uses for clients of a Unix socket."""


def conditions(context: RenderContext, listener: Listener, lists: Access, trusted: str | None) -> tuple[Token, ...]:
    """Return the `if` conditions that match a client to reject.

    `trusted` is the variable that is 1 for a trusted peer, or None if the listener does not trust any.
    """
    unread = [Token(context.condition(f"{trusted}\n{_LINES}", (_UNREAD,)))] if _may_hide(listener, lists) else []
    denied = [Token(_within(context, lists.deny))] if lists.deny else []
    allowed = [Token(f"{_within(context, lists.allow)} = 0")] if lists.allow is not None else []
    return (*unread, *denied, *allowed)


def _may_hide(listener: Listener, lists: Access) -> bool:
    """Return whether a rejected client could hide its address in the header of a trusted peer."""
    client = listener.client_address
    by_lines = client is not None and not listener.proxy_protocol and client.header.lower() == READS_ALL_LINES
    return by_lines and lists.is_limited


def reads_forged_line(context: RenderContext, listener: Listener) -> bool:
    """Return whether nginx would silently use the first of several header lines that contain the client's address."""
    client = listener.client_address
    return client is not None and client.header.lower() != READS_ALL_LINES and context.version < _JOINS_HEADERS


def unknown(context: RenderContext, listener: Listener, route: Route) -> bool:
    """Return whether the route limits its clients although nginx sees only a load balancer's address.

    In that case, add a warning.
    """
    if listener.client_address is None or not access(listener).of(route).is_limited:
        return False
    takes_balancer = listener.proxy_protocol or reads_forged_line(context, listener)
    if takes_balancer:
        own = route.allow_from is not None or route.deny_from is not None
        path = ("routes", route.name) if own else ("listeners", listener.name)
        key = "allow_from" if (route if own else listener).allow_from is not None else "deny_from"
        message = (
            f"nginx does not see the client's address on listener {listener.name} (LB406), so route {route.name} "
            "returns 503"
        )
        context.warn("route.access" if own else "listener.access", (*path, key), message)
    return takes_balancer


def _within(context: RenderContext, networks: tuple[str, ...]) -> str:
    """Return the variable that is 1 for clients in these networks, otherwise 0."""
    tokens = tuple(quote.plain(item) for item in networks if item != _UNREADABLE)
    for geo in context.geos:
        if geo.address == _CLIENT and geo.networks == tokens:
            return geo.variable.text
    variable = f"$lb_from{sum(geo.address == _CLIENT for geo in context.geos)}"
    context.geos.append(Geo(_CLIENT, Token(variable), tokens, (_NO_ADDRESS,)))
    return variable

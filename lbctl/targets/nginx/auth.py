"""API keys: a request's key decides its tenant, and a request without a known key goes no further.

The keys stand in a file of their own, included by name. nginx compares the words of a map without regard to case, which
would make keys weaker than they are: each is a regular expression for exactly itself. nginx knows no SHA-256: a key of
which only the hash is known is refused.
"""

from __future__ import annotations

from lbctl.ir.routes import Route
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.target import File
from lbctl.targets.token import Token


def tenant(book: RenderContext, route: Route, number: int) -> Token | None:
    """The variable with the tenant of a request of `route`, empty where no key is known; None without API keys."""
    if route.auth is None or route.auth.api_keys is None:
        return None
    variable = f"$lb_r{number}_tenant"
    if all(item.variable != Token(variable) for item in book.maps):
        _keys(book, route, route.auth.api_keys.header, variable)
    return Token(variable)


def forwarded(book: RenderContext, route: Route, number: int) -> dict[str, Token]:
    """Request headers: the tenant that is passed on, and nothing of what a client says under such a name."""
    told = (item.auth.forward_tenant for item in book.view.routes.values() if item.auth is not None)
    found = {name.lower(): Token('""') for name in told if name is not None}
    auth = route.auth
    if auth is None:
        return found
    if auth.api_keys is not None and not auth.forward_credentials:
        found[auth.api_keys.header.lower()] = Token('""')
    known = tenant(book, route, number)
    if auth.forward_tenant is not None and known is not None:
        found[auth.forward_tenant.lower()] = known
    return found


def _keys(book: RenderContext, route: Route, header: str, variable: str) -> None:
    path = ("routes", route.name, "auth", "api_keys")
    source = names.header(header)
    if source is None:
        book.warn("route.auth.api_keys", (*path, "header"), "nginx drops headers of that name: nobody is let in")
    keys = book.view.api_keys.get(route.name, ()) if source is not None else ()
    hashed = sum(1 for item in keys if not item.key)
    if hashed:
        message = f"nginx knows no SHA-256: the {hashed} keys that stand in the file as hashes are refused"
        book.warn("route.auth.api_keys", (*path, "file"), message)
    name = f"nginx-api-keys-{route.name}.map"
    lines = (f"{_key(item.key)} {item.tenant};\n" for item in keys if item.key)
    book.files.append(File(name, "".join(lines), secret=True))
    book.map(source or "", variable, ((Token("default"), Token('""')),), include=quote.plain(name))


def _key(key: str) -> str:
    return quote.plain(f"~^(?:(?i:bearer) +)?{quote.literal(key)}\\z").text

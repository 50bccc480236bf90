"""Variables that store hash keys from headers and cookies that are removed before the replica gets the request.

HAProxy chooses the replica after the frontend's rules have run, when such a header has already been removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.hosted import hosted_pool
from lbctl.targets.token import Token

_FETCHES = {"header": "req.fhdr", "cookie": "req.cook"}
_OTHER = re.compile(r"[^A-Za-z0-9_]")


def variable(pool: Pool, view: View) -> str | None:
    """Return the variable that stores the pool's hash key, or None if the header itself reaches the pool."""
    key = pool.balance.key
    if key is None or key.kind not in _FETCHES:
        return None
    header = "cookie" if key.kind == "cookie" else key.name
    hosted = hosted_pool(view, pool.name)
    by_backend = hosted is not None and header in hosted.removed
    if not by_backend and not any(header in _removed_headers(item) for item in _routes_to(pool.name, view)):
        return None
    return f"txn.{key.kind}.{_OTHER.sub('.', key.name)}"


def lines(route: Route, view: View) -> Iterator[Token]:
    """Yield the lines that set the variables. The lines must run before the route removes its headers."""
    names = sorted({pool for item in [route.action] if isinstance(item, Forward) for pool in item.pools})
    pool_of_variable = {
        variable(pool, view): pool for pool in (view.pools[name] for name in names if name in view.pools)
    }
    for name, pool in pool_of_variable.items():
        if name is not None and pool.balance.key is not None:
            fetch = quote.word(quote.sample(_FETCHES[pool.balance.key.kind], pool.balance.key.name))
            path = ("pools", pool.name, "balance", "hash", "key")
            yield line(f"http-request set-var({name})", fetch, f"if route_{quote.name(route.name).text}", source=path)


def _routes_to(pool: str, view: View) -> list[Route]:
    return [item for item in view.routes.values() if isinstance(item.action, Forward) and pool in item.action.pools]


def _removed_headers(route: Route) -> set[str]:
    names = {*route.request_headers.remove, *(name for name, _ in route.request_headers.set)}
    auth = route.auth
    if auth is None or auth.forward_credentials:
        return names
    return names | set(auth.api_keys.headers if auth.api_keys else ()) | ({"authorization"} if auth.jwt else set())

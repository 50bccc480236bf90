"""Where the requests of a listener go, as HAProxy notes it: their route and their pool, and the backend.

A listener that treats every request alike knows all three beforehand. Then nothing is looked up, and a variable is set
only where something reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote, sections
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

ROUTE, POOL = "txn.route", "txn.pool"
_BACKEND = "txn.backend"


@dataclass(frozen=True, slots=True)
class Destination:
    """The lines about the route and the pool that stand around those of the routes themselves."""

    route: Token
    """The line that notes the route for the access log, once it is chosen."""
    pool: Token
    """The line that notes the pool for the access log, once it is chosen."""
    backend: tuple[Token, ...]
    """The lines that choose the backend."""


def only_route(listener: Listener) -> str | None:
    """Return the route that takes every request of the listener, where it has no other rule."""
    if len(listener.rules) != 1 or listener.rules[0] != Rule(listener.rules[0].route):
        return None
    return listener.rules[0].route


def only_pool(route: Route) -> str | None:
    """Return the pool to which all requests of the route go; None where one has to be chosen."""
    action = route.action
    if not isinstance(action, Forward) or action.pins or action.fallback:
        return None
    active = [share.pool for share in action.shares if share.weight > 0]
    return active[0] if len(active) == 1 else None


def of(listener: Listener, view: View, lines: Sequence[Token]) -> Destination:
    """Return the lines for a listener, among whose lines are `lines`."""
    route = only_route(listener)
    pool = only_pool(view.routes[route]) if route else None
    chosen = any(_BACKEND in item.text for item in lines)
    return Destination(_logged(ROUTE, route), _logged(POOL, pool), tuple(_backends(view, pool, chosen=chosen)))


def unread(texts: Iterable[str]) -> tuple[str, ...]:
    """Return which of the variables of the route and of the pool none of these texts reads."""
    text = "\n".join(texts)
    return tuple(
        each for each in (ROUTE, POOL) if not re.search(rf"(?<!set-var\()(?<![\w.]){re.escape(each)}(?![\w.])", text)
    )


def without(variables: Iterable[str], lines: Iterable[Token]) -> tuple[Token, ...]:
    """Return `lines` without those that set one of the variables."""
    beginnings = tuple(f"http-request set-var({each}) " for each in variables)
    return tuple(item for item in lines if not item.text.startswith(beginnings))


def _logged(variable: str, name: str | None) -> Token:
    text = f"%[var({variable})]" if name is None else quote.name(name).text
    return Token(f"http-request set-var-fmt({variable}_json) '\"{text}\"'")


def _backends(view: View, pool: str | None, *, chosen: bool) -> Iterator[Token]:
    prefix = sections.own("pool_", view.proxy)
    if chosen:
        yield Token(f"use_backend {prefix}%[var({_BACKEND})] if {{ var({_BACKEND}) -m found }}")
    if pool is None:
        yield Token(f"use_backend {prefix}%[var({POOL})]")
    else:
        yield line("default_backend", sections.pool(pool, view.proxy))

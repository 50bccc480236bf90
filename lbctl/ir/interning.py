"""Reuse of the previous fleet's objects after a reload, wherever their values are equal.

Caches that are keyed by object identity then see at once what has changed, without comparing values.
"""

from __future__ import annotations

from typing import TypeVar

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Route
from lbctl.ir.topology import Topology

_Named = TypeVar("_Named", Listener, Pool, Proxy, Route)


def intern_unchanged(before: Topology, after: Topology) -> Topology:
    """Return a Topology equal to `after` that reuses every object of `before` that did not change."""
    return Topology(
        listeners=_intern(before.listeners, after.listeners),
        routes=_intern(before.routes, after.routes),
        pools=_intern(before.pools, after.pools),
        proxies=_intern(before.proxies, after.proxies),
        control=before.control if before.control == after.control else after.control,
    )


def _intern(before: tuple[_Named, ...], after: tuple[_Named, ...]) -> tuple[_Named, ...]:
    previous = {item.name: item for item in before}
    interned = tuple(previous[item.name] if previous.get(item.name) == item else item for item in after)
    return before if interned == before else interned

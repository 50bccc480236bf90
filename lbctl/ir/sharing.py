"""A fleet that was read again, with the objects of the one before wherever nothing differs.

Whoever keeps what was made of them then sees at once what has changed, without a look into each.
"""

from __future__ import annotations

from typing import TypeVar

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Route
from lbctl.ir.topology import Topology

_Named = TypeVar("_Named", Listener, Pool, Proxy, Route)


def shared(before: Topology, after: Topology) -> Topology:
    """`after`, equal in value."""
    return Topology(
        listeners=_shared(before.listeners, after.listeners),
        routes=_shared(before.routes, after.routes),
        pools=_shared(before.pools, after.pools),
        proxies=_shared(before.proxies, after.proxies),
        control=before.control if before.control == after.control else after.control,
    )


def _shared(before: tuple[_Named, ...], after: tuple[_Named, ...]) -> tuple[_Named, ...]:
    known = {item.name: item for item in before}
    found = tuple(known[item.name] if known.get(item.name) == item else item for item in after)
    return before if found == before else found

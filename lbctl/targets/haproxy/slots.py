"""Spare server slots: servers in maintenance that replicas occupy and release through the Runtime API.

If HAProxy supports it, a new replica is added at run time under its own name. Adding a replica at run time is not
supported if servers have a cookie. The new replica then occupies a slot, and becomes a separate server at the next
start. A map file next to the configuration maps each slot to its replica, so that logs show the replica's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.target import File

PREFIX = "SLOT."
"""Prefix of slot names. Names in a fleet contain no capitals, so no replica can have such a name."""
MAP = "slots.map"
"""File that maps each slot to its replica. A free slot is mapped to its own name."""
NOWHERE = "127.0.0.1:1"
"""Address of a slot that has never had a replica."""
_MIN_SPARE = 4


def names(part: TierBackend) -> tuple[str, ...]:
    """Return the names of the slots of one backend."""
    backend = quote.name(part.name).text
    return tuple(f"{PREFIX}{backend}.{number}" for number in range(1, count(part.view.proxy, part.pool) + 1))


def count(proxy: Proxy, pool: Pool) -> int:
    """Return a backend's number of slots: the configured number, or half the number of replicas if slots are needed.

    Agents know only the replicas in the file, and a standby cannot become an active server. The map's path is relative
    to `default-path`, which a fragment cannot set.
    """
    if not proxy.runtime_api or proxy.agent_check or proxy.is_fragment:
        return 0
    if proxy.slots is not None:
        return proxy.slots
    return max(_MIN_SPARE, -(-len(pool.replicas) // 2)) if pool.affinity else 0


def files(parts: Iterable[TierBackend]) -> Iterator[File]:
    """Yield the map, if any backend has slots."""
    slots = [name for part in parts for name in names(part)]
    if slots:
        yield File(MAP, "".join(f"{name} {name}\n" for name in slots))


def is_slot(server: str) -> bool:
    """Return whether a server of a running HAProxy is a slot."""
    return server.startswith(PREFIX)

"""Where a replica's agent is: one TCP port a replica, counting up from the first in the order of pools and replicas.

HAProxy asks there how much of its weight a replica shall have, where a site allows the Runtime API to nobody. Whoever
renders and whoever answers count alike, so a port says which replica it is for.
"""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.ir.address import Address
from lbctl.ir.snapshot import View

INTERVAL = 2_000
"""ms between two questions."""
_LAST_PORT = 65_535
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def places(view: View) -> Mapping[tuple[str, str], Address]:
    """(pool, replica) → where HAProxy asks; empty without an agent. What finds no port any more has none."""
    first = view.proxy.agent_check
    if first is None or not first.port:
        return {}
    host = _EVERYWHERE.get(first.host, first.host)
    names = [(pool, item.name) for pool, known in sorted(view.pools.items()) for item in known.replicas]
    ports = range(first.port, _LAST_PORT + 1)
    return {name: Address(host, port) for name, port in zip(names, ports, strict=False)}

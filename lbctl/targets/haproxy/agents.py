"""Where a replica's agent is, and how HAProxy says for which replica it asks.

HAProxy asks there how much of its weight a replica shall have, where a site allows the Runtime API to nobody. There is
one TCP port a replica, counting up from the first in the order of pools and replicas. When a replica goes, the ports of
those after it are others in the next file, while HAProxy may run the last one for as long as it likes. So a port says
nothing sure: each question says the replica's name, its address and its capacity, as they stand in the file that runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lbctl.base.hosts import from_here
from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.snapshot import View

INTERVAL = 2_000
"""ms between two questions."""
_LAST_PORT = 65_535
_PORT = re.compile(r"(?m)^ +server .* agent-addr (\S+) agent-port (\d{1,5})\b")


def places(view: View) -> Mapping[tuple[str, str], Address]:
    """(pool, replica) → where HAProxy asks; empty without an agent. What finds no port any more has none."""
    first = view.proxy.agent_check
    if first is None or not first.port:
        return {}
    host = from_here(first.host)
    names = [(pool, item.name) for pool, known in sorted(view.pools.items()) for item in known.replicas]
    ports = range(first.port, _LAST_PORT + 1)
    return {name: Address(host, port) for name, port in zip(names, ports, strict=False)}


def who(pool: str, replica: Replica) -> str:
    """The replica as a question names it. At another address it is another one."""
    return f"{pool}/{replica.name} {replica.address}"


def base(replica: Replica) -> float:
    """What a percentage is of: what the weight in the file is in proportion to."""
    return 0.0 if replica.drain else replica.capacity


def question(pool: str, replica: Replica) -> str:
    """What HAProxy says first, without the line feed that ends it."""
    return f"{who(pool, replica)} {base(replica):g}"


def ports(text: str, first: Address) -> frozenset[int]:
    """Those that an older file, which may still run, has of this agent."""
    host = from_here(first.host)
    return frozenset(int(port) for where, port in _PORT.findall(text) if where == host and int(port) <= _LAST_PORT)

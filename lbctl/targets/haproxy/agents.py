"""Agent checks: the ports on which HAProxy queries the replicas' weights, and how a query identifies its replica.

An agent check returns the percentage of its full weight that a replica should have. They are meant for sites that do
not allow access to the Runtime API. Every replica has one TCP port. Ports are numbered consecutively in the order of
pools and replicas. When a replica is removed, later replicas' ports change in the next file, while HAProxy may still be
running the previous file. A port therefore does not identify a replica. Each query contains the replica's name, address
and capacity from the file that HAProxy is running.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lbctl.base.hosts import from_here
from lbctl.ir.address import Address
from lbctl.ir.pools import Replica
from lbctl.ir.snapshot import View

INTERVAL = 2_000
"""Milliseconds between two queries."""
_LAST_PORT = 65_535
_PORT = re.compile(r"(?m)^ +server .* agent-addr (\S+) agent-port (\d{1,5})\b")


def places(view: View) -> Mapping[tuple[str, str], Address]:
    """Map (pool, replica) to the address that HAProxy queries; empty if the proxy does not have an agent.

    Replicas for which no port is free are absent.
    """
    first = view.proxy.agent_check
    if first is None or not first.port:
        return {}
    host = from_here(first.host)
    names = [(pool, item.name) for pool, settings in sorted(view.pools.items()) for item in settings.replicas]
    ports = range(first.port, _LAST_PORT + 1)
    return {name: Address(host, port) for name, port in zip(names, ports, strict=False)}


def identity(pool: str, replica: Replica) -> str:
    """Return the text that identifies the replica in a query.

    A replica that has moved to another address is treated as new.
    """
    return f"{pool}/{replica.name} {replica.address}"


def full_weight(replica: Replica) -> float:
    """Return the weight to which the percentage in the agent's response refers.

    The weight in the file is proportional to this weight.
    """
    return 0.0 if replica.drain else replica.capacity


def question(pool: str, replica: Replica) -> str:
    """Return the text that HAProxy sends first, without the final line feed."""
    return f"{identity(pool, replica)} {full_weight(replica):g}"


def ports(text: str, first: Address) -> frozenset[int]:
    """Return the ports that the configuration `text`, which may be older, uses for agents on `first`'s host."""
    host = from_here(first.host)
    return frozenset(int(port) for address, port in _PORT.findall(text) if address == host and int(port) <= _LAST_PORT)

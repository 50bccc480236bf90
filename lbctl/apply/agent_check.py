"""HAProxy asks, this answers: one TCP port a replica, one line a connection, where nobody is given the Runtime API.

The line is always whole, since HAProxy keeps what a shorter one does not mention: `up ready 75%`, `up drain`,
`down #reason`. The percentage is of the weight in the file, which for such a proxy is the replica's capacity. Nobody is
asked who he is, and nothing is read: the ports are of loopback unless the fleet binds others.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping

from lbctl.ir.address import Address
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import agents, servers
from lbctl.targets.quantise import quantise

Down = Mapping[tuple[str, str], str]
"""(pool, replica) → why it is out."""
_UNKNOWN = b"\n"
"""Says nothing: HAProxy goes on as before."""
_REASON = re.compile(r"[^ -~]|[,;#]")
_LONGEST = 80


class AgentCheck:
    """Listens once it is told of a view; `close` ends it."""

    def __init__(self) -> None:
        self._lines: dict[int, bytes] = {}
        self._listening: dict[Address, asyncio.Server] = {}

    async def tell(self, view: View, down: Down | None = None) -> tuple[str, ...]:
        """From now on these answers; why some cannot be given."""
        first = view.proxy.agent_check
        said = lines(view, down or {})
        wanted = {place.port: said[name] for name, place in agents.places(view).items()}
        self._lines = {port: line.encode() for port, line in wanted.items()}
        here = {Address(first.host, port) for port in wanted} if first else set()
        for gone in [each for each in self._listening if each not in here]:
            self._listening.pop(gone).close()
        return tuple([words for each in sorted(here, key=str) if (words := await self._listen(each))])

    async def close(self) -> None:
        for server in self._listening.values():
            server.close()
        for server in self._listening.values():
            await server.wait_closed()
        self._listening.clear()

    async def _listen(self, place: Address) -> str:
        if place in self._listening:
            return ""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(self._lines.get(place.port, _UNKNOWN))
                await writer.drain()
                writer.close()
                await writer.wait_closed()

        try:
            self._listening[place] = await asyncio.start_server(answer, place.host, place.port)
        except OSError as error:
            return f"the agent check cannot listen on {place}: {error.strerror or error}"
        return ""


def lines(view: View, down: Down) -> dict[tuple[str, str], str]:
    """(pool, replica) → its line. A replica that stands in several backends has one agent: the share that it has in the
    whole pool counts in each."""
    found = {}
    for pool, known in view.pools.items():
        percents = _percents(view, pool)
        leaves = "maint" if known.affinity else "drain"
        for replica, percent in zip(known.replicas, percents, strict=True):
            name = (pool, replica.name)
            if name in down:
                found[name] = f"down #{_REASON.sub(' ', down[name])[:_LONGEST]}\n"
            elif replica.name in view.drained[pool] and not replica.drain:
                found[name] = f"up {leaves} {percent}%\n"
            else:
                found[name] = f"up ready {percent}%\n"
    return found


def _percents(view: View, pool: str) -> list[int]:
    """Such that HAProxy, which rounds down, comes to the weights that it would be told by other ways."""
    known = view.pools[pool]
    filed = quantise([item.capacity for item in known.replicas], servers.MAX_WEIGHT)
    wanted = servers.haproxy_weights(known, view.weights[pool])
    return [_percent(now, base) for now, base in zip(wanted, filed, strict=True)]


def _percent(wanted: int, base: int) -> int:
    exact = -(-100 * wanted // base)
    return min((exact, exact - 1), key=lambda each: (abs(base * each // 100 - wanted), -each)) or 1

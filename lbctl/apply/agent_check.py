"""HAProxy asks, this answers: one line a connection, where nobody is given the Runtime API.

HAProxy says first for which replica it asks, by name and address, as they stand in the file that it runs. So an answer
is never another replica's, whichever file runs and however the ports have moved since: a replica that is gone is told
to rest, one that is new waits until the new file runs. Who says nothing is answered by the port, as long as that has
been one replica's since this process began. What nobody asks for nobody has: `standing` says so.

The line is always whole, since HAProxy keeps what a shorter one does not mention: `up ready 75%`, `up drain 75%`,
`down #reason`. The percentage is of the weight in the file, which for such a proxy is the replica's capacity. Nobody is
asked who he is: the ports are of loopback unless the fleet binds others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lbctl.ir.address import Address
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import agents, servers
from lbctl.targets.quantise import quantise

Down = Mapping[tuple[str, str], str]
"""(pool, replica) → why it is out."""
LATE = 3 * agents.INTERVAL / 1000
"""Seconds without a question, after which none is expected."""
_UNKNOWN = b"\n"
"""Says nothing: HAProxy goes on as before."""
_GONE = b"up maint\n"
_PERCENT = re.compile(rb"(\d+)%")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?(e[+-]\d{1,2})?")
_REASON = re.compile(r"[^ -~]|[,;#]")
_LONGEST = 80
_FIRST_WORDS = 0.5
"""Seconds that HAProxy may take to say for whom it asks."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """What HAProxy's questions show. `due`: it asks, and has yet to hear the newest. `wrong`: it does not ask, or not
    for what the fleet has. Both empty: it has all."""

    due: str = ""
    wrong: str = ""


class AgentCheck:
    """Listens once it is told of a view; `close` ends it. `older`: ports that a file has which may still run."""

    def __init__(self, older: Collection[int] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._older = older
        self._clock = clock
        self._since: dict[str, float] = {}
        self._first: Address | None = None
        self._names: dict[str, str] = {}
        self._lines: dict[str, bytes] = {}
        self._bases: dict[str, float] = {}
        self._of_port: dict[int, str] = {}
        self._weightless: dict[str, float] = {}
        self._heard: dict[str, tuple[float, bytes]] = {}
        self._unsaid: float | None = None
        self._listening: dict[Address, asyncio.Server] = {}

    async def tell(self, view: View, down: Down | None = None) -> tuple[str, ...]:
        """From now on these answers; why some cannot be given."""
        said, ports = lines(view, down or {}), agents.places(view)
        known = {
            (pool, item.name): (agents.who(pool, item), agents.base(item))
            for pool, each in view.pools.items()
            for item in each.replicas
        }
        asks = {name: who for name, (who, _) in known.items()}
        self._bases = dict(known.values())
        self._first = view.proxy.agent_check
        self._names = {asks[name]: "/".join(name) for name in ports}
        self._lines = {asks[name]: said[name].encode() for name in ports}
        self._since = {asked: self._since.get(asked, self._clock()) for asked in self._names}
        for name, place in ports.items():
            same = self._of_port.setdefault(place.port, asks[name]) == asks[name]
            self._of_port[place.port] = asks[name] if same else ""
        host = self._first.host if self._first else ""
        wanted = [Address(host, place.port) for place in ports.values()]
        for port in self._older:
            await self._listen(Address(host, port))
        return tuple([words for each in wanted if (words := await self._listen(each))])

    def standing(self) -> Standing:
        now = self._clock()
        self._heard = {asked: told for asked, told in self._heard.items() if now - told[0] <= LATE}
        lately = {asked: line for asked, (_, line) in self._heard.items()}
        expected = [asked for asked, since in self._since.items() if now - since > LATE]
        silent = [self._names[asked] for asked in expected if asked not in lately]
        if silent:
            return Standing(wrong=self._silence(silent, bool(lately), now))
        gone = [who for who, (at, _) in self._heard.items() if who not in self._names and now - at <= LATE / 2]
        if gone:
            words = f"HAProxy runs an older file: it asks for {_some(gone)}, which the fleet does not have any more"
            return Standing(wrong=f"{words}, and is told to let it rest; render its file and reload it")
        stuck = [self._names[who] for who, at in self._weightless.items() if now - at <= LATE and self._bases.get(who)]
        if stuck:
            words = f"HAProxy runs an older file, in which {_some(stuck)} is drained and nothing brings it back"
            return Standing(wrong=f"{words}; render its file and reload it")
        behind = [name for asked, name in self._names.items() if lately.get(asked) != self._lines[asked]]
        return Standing(due=f"HAProxy has yet to ask for the newest of {_some(behind)}" if behind else "")

    def _silence(self, silent: list[str], others: bool, now: float) -> str:
        if others:
            words = f"HAProxy does not ask for {_some(silent)}: it runs another file than this fleet makes"
            return f"{words}; render its file and reload it"
        if self._unsaid is not None and now - self._unsaid <= LATE:
            words = "HAProxy asks without saying for which replica, so it may be answered for another one"
            return f"{words}; render its file and reload it, or give its servers an agent-send"
        words = f"HAProxy does not ask: no question on {self._first} and the ports above it for {LATE:g} s"
        return f"{words}; look whether it runs, with the file that is rendered for this fleet"

    def reloaded(self) -> None:
        """Another file runs from now on: what was asked before says nothing of it."""
        self._heard.clear()
        self._weightless.clear()
        self._since = dict.fromkeys(self._names, self._clock())

    async def close(self) -> None:
        for server in self._listening.values():
            server.close()
        for server in self._listening.values():
            await server.wait_closed()
        self._listening.clear()

    async def _listen(self, place: Address) -> str:
        """Also for a replica that is gone: a file that still runs may have its port."""
        if place in self._listening:
            return ""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(self._answer(await self._said(reader), place.port))
                await writer.drain()
                writer.close()
                await writer.wait_closed()

        try:
            self._listening[place] = await asyncio.start_server(answer, place.host, place.port, limit=4096)
        except OSError as error:
            return f"the agent check cannot listen on {place}: {os.strerror(error.errno) if error.errno else error}"
        return ""

    async def _said(self, reader: asyncio.StreamReader) -> str:
        """For whom; empty where that is not said in time."""
        try:
            said = await asyncio.wait_for(reader.readline(), _FIRST_WORDS)
        except TimeoutError:
            self._unsaid = self._clock()
            return ""
        except ValueError:
            return ""
        return said.decode(errors="replace").strip()

    def _answer(self, said: str, port: int) -> bytes:
        if not said:
            return self._lines.get(self._of_port.get(port, ""), _UNKNOWN)
        who, _, base = said.rpartition(" ")
        now = self._clock()
        line = self._lines.get(who) or (_GONE if self._is_gone(who, now) else _UNKNOWN)
        if line != _UNKNOWN:
            self._heard[who] = (now, line)
        if base == "0" and who in self._names:
            self._weightless[who] = now
        else:
            self._weightless.pop(who, None)
        return _of(line, self._bases.get(who, 0.0), base)

    def _is_gone(self, who: str, now: float) -> bool:
        """Not in the fleet, while others of its pool that are in it are asked for: a file in which there is none of
        them is left alone, since nothing would be left of the pool."""
        others = [each for each, (at, _) in self._heard.items() if each in self._names and now - at <= LATE]
        return who not in self._names and _pool(who) in map(_pool, others)


def _pool(who: str) -> str:
    return who.partition("/")[0]


def _of(line: bytes, now: float, told: str) -> bytes:
    """The line for a file in which the replica has another capacity."""
    if not now or told == f"{now:g}" or not _NUMBER.fullmatch(told) or not float(told):
        return line
    return _PERCENT.sub(lambda found: b"%d%%" % max(1, round(int(found[1]) * now / float(told))), line)


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def lines(view: View, down: Down) -> dict[tuple[str, str], str]:
    """(pool, replica) → its line, for the file that is rendered of this view. A replica that stands in several backends
    has one agent: the share that it has in the whole pool counts in each."""
    found = {}
    for pool, known in view.pools.items():
        percents = _percents(view, pool)
        leaves = "maint" if known.affinity else "drain"
        for replica, percent in zip(known.replicas, percents, strict=True):
            name = (pool, replica.name)
            if name in down:
                found[name] = f"down #{_REASON.sub(' ', down[name])[:_LONGEST]}\n"
            elif replica.name in view.drained[pool]:
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

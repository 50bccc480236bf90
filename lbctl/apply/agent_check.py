"""The agent-check server: answers HAProxy's agent checks, one line for each connection, without the Runtime API.

HAProxy first sends the name and address of the replica it asks for, as they are in the file that it runs. An answer is
therefore never another replica's, whichever file runs and however the ports have moved since: a removed replica is
answered with maintenance, and a new one waits until the new file runs. A question without a name is answered by its
port, as long as that port has belonged to one replica since this process started. `standing` reports replicas that
HAProxy does not ask for.

An answer is always complete, since HAProxy keeps what a shorter one omits: `up ready 75%`, `up drain 75%`, `down
#reason`. The percentage is of the weight in the file, which for such a proxy is the replica's capacity. Clients are not
authenticated: the ports are on loopback unless the fleet binds others.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import agents, servers
from lbctl.targets.quantise import quantise

Down = Mapping[tuple[str, str], str]
"""(pool, replica) → why it is out."""
LATE = 3 * agents.INTERVAL / 1000
"""Seconds without a question after which HAProxy counts as not asking."""
_UNKNOWN = b"\n"
"""An empty answer: HAProxy changes nothing."""
_GONE = b"up maint\n"
_PERCENT = re.compile(rb"(\d+)%")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?(e[+-]\d{1,2})?")
_REASON = re.compile(r"[^ -~]|[,;#]")
_LONGEST = 80
_FIRST_WORDS = 0.5
"""Seconds within which HAProxy must send the name of the replica."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What HAProxy's questions show; both fields are empty if HAProxy has the newest answers.

    `due`: HAProxy asks, and has yet to receive the newest answer. `wrong`: it does not ask, or asks for other replicas
    than the fleet has.
    """

    due: str = ""
    wrong: str = ""


class AgentCheck:
    """Listens from the first `tell` until `close`. `older`: ports in a file that may still run."""

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
        """Answer for this view from now on; return why some addresses cannot be listened on."""
        answers, ports = lines(view, down or {}), agents.places(view)
        agents_of = {
            (pool, item.name): (agents.identity(pool, item), agents.full_weight(item))
            for pool, each in view.pools.items()
            for item in each.replicas
        }
        names_sent = {name: agent for name, (agent, _) in agents_of.items()}
        self._bases = dict(agents_of.values())
        self._first = view.proxy.agent_check
        self._names = {names_sent[name]: "/".join(name) for name in ports}
        self._lines = {names_sent[name]: answers[name].encode() for name in ports}
        self._since = {sent: self._since.get(sent, self._clock()) for sent in self._names}
        for name, place in ports.items():
            same = self._of_port.setdefault(place.port, names_sent[name]) == names_sent[name]
            self._of_port[place.port] = names_sent[name] if same else ""
        host = self._first.host if self._first else ""
        wanted = [Address(host, place.port) for place in ports.values()]
        for port in self._older:
            await self._listen(Address(host, port))
        return tuple([failure for each in wanted if (failure := await self._listen(each))])

    def standing(self) -> AgentStatus:
        """Return what the questions of the last seconds show about the file that HAProxy runs."""
        now = self._clock()
        self._heard = {agent: answer for agent, answer in self._heard.items() if now - answer[0] <= LATE}
        lately = {agent: line for agent, (_, line) in self._heard.items()}
        expected = [agent for agent, since in self._since.items() if now - since > LATE]
        silent = [self._names[agent] for agent in expected if agent not in lately]
        if silent:
            return AgentStatus(wrong=self._silence(silent, bool(lately), now))
        gone = [agent for agent, (at, _) in self._heard.items() if agent not in self._names and now - at <= LATE / 2]
        if gone:
            reason = f"HAProxy runs an older file: it asks for {_some(gone)}, which the fleet does not have any more"
            return AgentStatus(wrong=f"{reason}, and is told to let it rest; render its file and reload it")
        stuck = [
            self._names[agent] for agent, at in self._weightless.items() if now - at <= LATE and self._bases.get(agent)
        ]
        if stuck:
            reason = f"HAProxy runs an older file, in which {_some(stuck)} is drained and nothing brings it back"
            return AgentStatus(wrong=f"{reason}; render its file and reload it")
        behind = [name for agent, name in self._names.items() if lately.get(agent) != self._lines[agent]]
        return AgentStatus(due=f"HAProxy has yet to ask for the newest of {_some(behind)}" if behind else "")

    def _silence(self, silent: list[str], others: bool, now: float) -> str:
        if others:
            reason = f"HAProxy does not ask for {_some(silent)}: it runs another file than this fleet makes"
            return f"{reason}; render its file and reload it"
        if self._unsaid is not None and now - self._unsaid <= LATE:
            reason = "HAProxy asks without saying for which replica, so it may be answered for another one"
            return f"{reason}; render its file and reload it, or give its servers an agent-send"
        reason = f"HAProxy does not ask: no question on {self._first} and the ports above it for {LATE:g} s"
        return f"{reason}; look whether it runs, with the file that is rendered for this fleet"

    def reloaded(self) -> None:
        """Forget all earlier questions, because HAProxy runs another file from now on."""
        self._heard.clear()
        self._weightless.clear()
        self._since = dict.fromkeys(self._names, self._clock())

    async def close(self) -> None:
        """Stop listening."""
        for server in self._listening.values():
            server.close()
        for server in self._listening.values():
            await server.wait_closed()
        self._listening.clear()

    async def _listen(self, place: Address) -> str:
        """Listen, also for a removed replica: a file that still runs may have its port. Return the failure."""
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
            return f"the agent check cannot listen on {place}: {reason_of(error)}"
        return ""

    async def _said(self, reader: asyncio.StreamReader) -> str:
        """Read which replica HAProxy asks for; empty if it does not say in time."""
        try:
            async with asyncio.timeout(_FIRST_WORDS):
                line = await reader.readline()
        except TimeoutError:
            self._unsaid = self._clock()
            return ""
        except ValueError:
            return ""
        return line.decode(errors="replace").strip()

    def _answer(self, question: str, port: int) -> bytes:
        if not question:
            return self._lines.get(self._of_port.get(port, ""), _UNKNOWN)
        agent, _, base = question.rpartition(" ")
        now = self._clock()
        line = self._lines.get(agent) or (_GONE if self._is_gone(agent, now) else _UNKNOWN)
        if line != _UNKNOWN:
            self._heard[agent] = (now, line)
        if base == "0" and agent in self._names:
            self._weightless[agent] = now
        else:
            self._weightless.pop(agent, None)
        return _of(line, self._bases.get(agent, 0.0), base)

    def _is_gone(self, agent: str, now: float) -> bool:
        """Return whether the replica was removed: HAProxy asks for others of its pool that the fleet has.

        If it asks for none of them, the file is left alone, because nothing would remain of the pool.
        """
        others = [each for each, (at, _) in self._heard.items() if each in self._names and now - at <= LATE]
        return agent not in self._names and _pool(agent) in map(_pool, others)


def _pool(agent: str) -> str:
    return agent.partition("/")[0]


def _of(line: bytes, now: float, base: str) -> bytes:
    """Scale the answer for a file in which the replica has another capacity."""
    if not now or base == f"{now:g}" or not _NUMBER.fullmatch(base) or not float(base):
        return line
    return _PERCENT.sub(lambda match: b"%d%%" % max(1, round(int(match[1]) * now / float(base))), line)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def lines(view: View, down: Down) -> dict[tuple[str, str], str]:
    """Map (pool, replica) to its answer for the file that is rendered from this view.

    A replica in several backends has one agent: its share of the whole pool applies in each of them.
    """
    answers = {}
    for pool, members in view.pools.items():
        percents = _percents(view, pool)
        leaves = "maint" if members.affinity else "drain"
        for replica, percent in zip(members.replicas, percents, strict=True):
            name = (pool, replica.name)
            if name in down:
                answers[name] = f"down #{_REASON.sub(' ', down[name])[:_LONGEST]}\n"
            elif replica.name in view.drained[pool]:
                answers[name] = f"up {leaves} {percent}%\n"
            else:
                answers[name] = f"up ready {percent}%\n"
    return answers


def _percents(view: View, pool: str) -> list[int]:
    """Return percentages that give HAProxy, which rounds down, the same weights as the other update methods."""
    members = view.pools[pool]
    filed = quantise([item.capacity for item in members.replicas], servers.MAX_WEIGHT)
    wanted = servers.haproxy_weights(members, view.weights[pool])
    return [_percent(now, base) for now, base in zip(wanted, filed, strict=True)]


def _percent(wanted: int, base: int) -> int:
    exact = -(-100 * wanted // base)
    return min((exact, exact - 1), key=lambda each: (abs(base * each // 100 - wanted), -each)) or 1

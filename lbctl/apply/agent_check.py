"""The agent-check server, which answers HAProxy's agent checks with one line per connection and needs no Runtime API.

HAProxy first sends the replica's name and address, as configured in the file that it runs. The response is therefore
always for the correct replica, even if HAProxy is running an older file or ports have changed. For a removed replica,
the response is maintenance. HAProxy does not check a new replica until it runs the new file. If HAProxy sends no name,
the port identifies the replica, provided that only one replica has used it since this process started. `status` reports
replicas without agent checks.

A response is always complete, because HAProxy keeps the old value if one is omitted. For example, a response can be `up
ready 75%`, `up drain 75%` or `down #reason`. The percentage is relative to the weight in the file, which for such a
proxy is the replica's capacity. Clients are not authenticated, but the ports are on loopback unless the fleet binds
other addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lbctl.apply.permit import Permit, always
from lbctl.base.errors import reason_of
from lbctl.base.printable import agent_check_reason
from lbctl.ir.address import Address
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import agents, servers
from lbctl.targets.replica_weights import quantise

Down = Mapping[tuple[str, str], str]
"""Maps (pool, replica) to the reason why the replica gets no requests."""
SILENCE_LIMIT = 3 * agents.INTERVAL / 1000
"""Seconds without an agent check after which HAProxy counts as disconnected."""
_NO_CHANGE = b"\n"
"""An empty response, which does not change anything in HAProxy."""
_REMOVED = b"up maint\n"
_PERCENT = re.compile(rb"(\d+)%")
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?(e[+-]\d{1,2})?")
MAX_QUESTION_BYTES = 4096
"""Maximum length of a request from HAProxy, in bytes."""
NAME_TIMEOUT = 0.5
"""Seconds to wait for HAProxy to send the replica's name."""
_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The state of an HAProxy's agent checks. Both fields are empty if HAProxy has the newest responses.

    `due` lists replicas whose newest weight HAProxy has not fetched yet. `wrong` reports that HAProxy is not sending
    agent checks, or is sending them for replicas that are not in the fleet.
    """

    due: str = ""
    wrong: str = ""


class AgentCheckServer:
    """Responds to HAProxy's agent checks from the first `update` until `close`.

    It also listens on `older_ports`, the ports in a file that HAProxy may still be running.
    """

    def __init__(
        self,
        older_ports: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
        permit: Permit = always,
    ) -> None:
        """`permit` returns whether lbctl is allowed to send new values to HAProxy. If not, every response is empty."""
        self._permit = permit
        self._older_ports = older_ports
        self._clock = clock
        self._served_since: dict[str, float] = {}
        self._bind: Address | None = None
        self._names: dict[str, str] = {}
        self._lines: dict[str, bytes] = {}
        self._full_weights: dict[str, float] = {}
        self._agent_of_port: dict[int, str] = {}
        self._weightless_at: dict[str, float] = {}
        self._last_answers: dict[str, tuple[float, bytes]] = {}
        self._unnamed_at: float | None = None
        self._servers: dict[Address, asyncio.Server] = {}

    async def update(self, view: View, down: Down | None = None) -> tuple[str, ...]:
        """Respond to agent checks based on this view. Return errors for addresses that the server cannot listen on."""
        answers, ports = lines(view, down or {}), agents.places(view)
        agents_of = {
            (pool, item.name): (agents.identity(pool, item), agents.full_weight(item))
            for pool, each in view.pools.items()
            for item in each.replicas
        }
        names_sent = {name: agent for name, (agent, _) in agents_of.items()}
        self._full_weights = dict(agents_of.values())
        self._bind = view.proxy.agent_check
        self._names = {names_sent[name]: "/".join(name) for name in ports}
        self._lines = {names_sent[name]: answers[name].encode() for name in ports}
        self._served_since = {agent: self._served_since.get(agent, self._clock()) for agent in self._names}
        for name, place in ports.items():
            is_same = self._agent_of_port.setdefault(place.port, names_sent[name]) == names_sent[name]
            self._agent_of_port[place.port] = names_sent[name] if is_same else ""
        host = self._bind.host if self._bind else ""
        wanted = [Address(host, place.port) for place in ports.values()]
        for port in self._older_ports:
            await self._listen(Address(host, port))
        return tuple([failure for each in wanted if (failure := await self._listen(each))])

    def status(self) -> AgentStatus:
        """Return HAProxy's state according to its most recent agent checks."""
        now = self._clock()
        self._last_answers = {
            agent: answer for agent, answer in self._last_answers.items() if now - answer[0] <= SILENCE_LIMIT
        }
        recent = {agent: line for agent, (_, line) in self._last_answers.items()}
        expected = [agent for agent, since in self._served_since.items() if now - since > SILENCE_LIMIT]
        silent = [self._names[agent] for agent in expected if agent not in recent]
        if silent:
            return AgentStatus(wrong=self._silence_reason(silent, bool(recent), now))
        removed = [
            agent
            for agent, (at, _) in self._last_answers.items()
            if agent not in self._names and now - at <= SILENCE_LIMIT / 2
        ]
        if removed:
            reason = (
                f"HAProxy is running an older file: it sends agent checks for {_sample(removed)}, which the fleet no "
                "longer contains"
            )
            return AgentStatus(wrong=f"{reason}, and gets the response maint; render the file again and reload HAProxy")
        drained = [
            self._names[agent]
            for agent, at in self._weightless_at.items()
            if now - at <= SILENCE_LIMIT and self._full_weights.get(agent)
        ]
        if drained:
            reason = f"HAProxy is running an older file, in which {_sample(drained)} is permanently drained"
            return AgentStatus(wrong=f"{reason}; render the file again and reload HAProxy")
        outdated = [name for agent, name in self._names.items() if recent.get(agent) != self._lines[agent]]
        return AgentStatus(
            due=f"HAProxy has not fetched the newest weight of {_sample(outdated)} yet" if outdated else ""
        )

    def _silence_reason(self, silent: list[str], others: bool, now: float) -> str:
        if others:
            reason = f"HAProxy sends no agent checks for {_sample(silent)}: its file was not rendered from this fleet"
            return f"{reason}; render the file again and reload HAProxy"
        if self._unnamed_at is not None and now - self._unnamed_at <= SILENCE_LIMIT:
            reason = "HAProxy's agent checks do not name the replica, so it may get another replica's weight"
            return f"{reason}; render the file again and reload HAProxy, or set agent-send on its servers"
        reason = f"HAProxy has sent no agent checks to {self._bind} and the ports above it for {SILENCE_LIMIT:g} s"
        return f"{reason}; check that it runs with the file rendered for this fleet"

    def reloaded(self) -> None:
        """Forget all earlier agent checks, because HAProxy has loaded a different file."""
        self._last_answers.clear()
        self._weightless_at.clear()
        self._served_since = dict.fromkeys(self._names, self._clock())

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers.values():
            server.close()
        for server in self._servers.values():
            await server.wait_closed()
        self._servers.clear()

    async def _listen(self, place: Address) -> str:
        """Listen on the address and return the error message, if any.

        Listeners for removed replicas remain open, because HAProxy may still be running with an older file.
        """
        if place in self._servers:
            return ""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                name = await self._read_name(reader)
                writer.write(self._answer(name, place.port) if self._permit() else _NO_CHANGE)
                await writer.drain()

        try:
            self._servers[place] = await asyncio.start_server(answer, place.host, place.port, limit=MAX_QUESTION_BYTES)
        except OSError as error:
            return f"the agent check cannot listen on {place}: {reason_of(error)}"
        return ""

    async def _read_name(self, reader: asyncio.StreamReader) -> str:
        """Return the replica's name from HAProxy's request, or an empty string if it does not arrive in time."""
        try:
            async with asyncio.timeout(NAME_TIMEOUT):
                line = await reader.readline()
        except TimeoutError:
            self._unnamed_at = self._clock()
            return ""
        except ValueError:
            return ""
        return line.decode(errors="replace").strip()

    def _answer(self, question: str, port: int) -> bytes:
        if not question:
            return self._lines.get(self._agent_of_port.get(port, ""), _NO_CHANGE)
        agent, _, base = question.rpartition(" ")
        now = self._clock()
        line = self._lines.get(agent) or (_REMOVED if self._is_removed(agent, now) else _NO_CHANGE)
        if line != _NO_CHANGE:
            self._last_answers[agent] = (now, line)
        if base == "0" and agent in self._names:
            self._weightless_at[agent] = now
        else:
            self._weightless_at.pop(agent, None)
        return _scaled(line, self._full_weights.get(agent, 0.0), base)

    def _is_removed(self, agent: str, now: float) -> bool:
        """Return whether the replica was removed from the fleet while HAProxy is checking other replicas in its pool.

        If HAProxy is not checking any of the remaining replicas, the result is False, because otherwise the pool would
        lose all its replicas.
        """
        others = [
            each for each, (at, _) in self._last_answers.items() if each in self._names and now - at <= SILENCE_LIMIT
        ]
        return agent not in self._names and _pool(agent) in map(_pool, others)


def _pool(agent: str) -> str:
    return agent.partition("/")[0]


def _scaled(line: bytes, full_weight: float, base: str) -> bytes:
    """Scale the response to match a file in which the replica has a different capacity."""
    if not full_weight or base == f"{full_weight:g}" or not _NUMBER.fullmatch(base) or not float(base):
        return line
    return _PERCENT.sub(lambda match: b"%d%%" % max(1, round(int(match[1]) * full_weight / float(base))), line)


def _sample(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
    return ", ".join(listed[:_MAX_SHOWN]) + more


def lines(view: View, down: Down) -> dict[tuple[str, str], str]:
    """Map each (pool, replica) to its response, for the file rendered from this view.

    A replica in several backends has only one agent, so its share of the whole pool applies in each backend.
    """
    answers = {}
    for pool, members in view.pools.items():
        percents = _percents(view, pool)
        drain_state = "maint" if members.affinity or members.session else "drain"
        for replica, percent in zip(members.replicas, percents, strict=True):
            name = (pool, replica.name)
            if name in down:
                answers[name] = f"down #{agent_check_reason(down[name])}\n"
            elif replica.name in view.drained[pool]:
                answers[name] = f"up {drain_state} {percent}%\n"
            else:
                answers[name] = f"up ready {percent}%\n"
    return answers


def _percents(view: View, pool: str) -> list[int]:
    """Return percentages that result in the same weights as the other update methods, although HAProxy rounds down."""
    members = view.pools[pool]
    base_weights = quantise([item.capacity for item in members.replicas], servers.MAX_WEIGHT)
    wanted = servers.haproxy_weights(members, view.weights[pool])
    return [_percent(weight, base) for weight, base in zip(wanted, base_weights, strict=True)]


def _percent(wanted: int, base: int) -> int:
    exact = -(-100 * wanted // base)
    return min((exact, exact - 1), key=lambda each: (abs(base * each // 100 - wanted), -each)) or 1

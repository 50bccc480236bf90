"""Answers HAProxy's agent checks with the replica's health, one line per connection.

HAProxy first sends a line that selects the type of response. `full` returns the weight, drain state and health. `full
maint` returns the same but reports a drain as maintenance, because HAProxy still sends requests with affinity to a
draining server. `health` returns only up or down, for an HAProxy that gets its weights and drains in another way. If no
line arrives in time, the agent responds as for `full`. Responses always include every value, because HAProxy keeps the
old value if one is omitted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from lbctl.agent.access import ClientNetworks, listening_socket
from lbctl.agent.assessment import Assessment
from lbctl.base.printable import agent_check_reason
from lbctl.ir.address import Address

MAX_QUESTION_BYTES = 256
"""Maximum length of the line from HAProxy, in bytes."""
MAX_CONNECTIONS = 64
_QUESTION_TIMEOUT = 0.5
"""Seconds to wait for HAProxy's line."""
_WRITE_TIMEOUT = 2.0
"""Seconds to wait for HAProxy to read the response."""


def answer(assessment: Assessment, question: str) -> str:
    """Return the response to HAProxy's line, without a line terminator."""
    words = question.split()
    if words[:1] == ["health"]:
        return "up" if assessment.state == "healthy" else _down(assessment)
    if assessment.state == "healthy":
        return f"up ready {assessment.weight}%"
    if assessment.state == "draining":
        return "up maint" if "maint" in words else "up drain"
    return _down(assessment)


def _down(assessment: Assessment) -> str:
    reason = assessment.state if assessment.state == "draining" else assessment.reasons[0].message
    return f"down #{agent_check_reason(reason)}"


class AgentCheckServer:
    """Responds to agent checks at one address from `start` until `close`."""

    def __init__(
        self,
        bind: Address,
        networks: ClientNetworks,
        assessment: Callable[[], Assessment],
        answered: Callable[[str], None],
    ) -> None:
        """`assessment` returns the current health. `answered` is called with the client after each response."""
        self._bind = bind
        self._networks = networks
        self._assessment = assessment
        self._answered = answered
        self._open: dict[asyncio.StreamWriter, None] = {}
        """Open connections, oldest first."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        listening = listening_socket(self._bind, self._networks)
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=MAX_QUESTION_BYTES)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond on one connection. Above `MAX_CONNECTIONS`, the oldest connection is closed without a response.

        HAProxy sends its line immediately, so clients that merely hold connections open cannot lock it out.
        """
        self._open[writer] = None
        if len(self._open) > MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                question = await _question(reader)
                writer.write(f"{answer(self._assessment(), question)}\n".encode())
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await writer.drain()
                self._answered(f"agent check {writer.get_extra_info('peername')[0]}")
        finally:
            self._open.pop(writer, None)
            writer.close()


async def _question(reader: asyncio.StreamReader) -> str:
    """Return HAProxy's line, or an empty string if the line arrives too late or is too long."""
    try:
        async with asyncio.timeout(_QUESTION_TIMEOUT):
            return (await reader.readline()).decode("ascii", "replace")
    except (TimeoutError, ValueError):
        return ""

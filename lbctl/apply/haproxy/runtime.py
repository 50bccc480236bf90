"""A client for HAProxy's Runtime API on a Unix socket or a loopback TCP port.

Failures are reported in the reply instead of being raised, because proxy restarts are ordinary events. The API has no
authentication and uses `;` and line feeds as command separators, so callers pass only commands built by `commands`.
Because the process listening on the address is not trusted, the size, line count and duration of a response are
limited.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass

from lbctl.apply.permit import NOT_PERMITTED, Permit, always
from lbctl.base.errors import reason_of
from lbctl.base.hosts import is_ip, is_loopback

_PROMPT = b"\n> "
MAX_ANSWER_BYTES = 10 << 20
"""Maximum size of the response to `query`, in bytes. This is enough for `show stat` with about 30,000 servers."""
MAX_LINES = 100_000
"""Maximum number of lines in the response to `query`."""
MAX_REPLY_BYTES = 64 * 1024
"""Maximum size of the reply to one command sent with `send`, in bytes."""
_SHOWN = 1000
"""Maximum number of characters to keep from a reply. Operators see the reply to a rejected command."""
_BATCH = 100
"""Number of commands to send before reading their replies, which limits how much HAProxy has to buffer."""

_PIECE = 256 * 1024
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _EndlessError(Exception):
    """A response is larger than any that HAProxy sends."""


@dataclass(frozen=True, slots=True)
class Replies:
    """Replies to a sequence of commands."""

    texts: tuple[str, ...]
    """One string per answered command, in order."""
    failure: str = ""
    """The reason why the remaining commands were not answered, or an empty string if all of them were."""


class Runtime:
    """A client for the API at `address`, which is a path, `ipv4@127.0.0.1:9999` or `ipv6@[::1]:9999`.

    Each call can take up to `timeout` seconds. `permit` is called before `send` sends commands.
    """

    def __init__(self, address: str, timeout: float = 5.0, permit: Permit = always) -> None:
        self.address = address
        self._permit = permit
        self._timeout = timeout

    async def query(self, command: str) -> Replies:
        """Send one command on its own connection, and read until HAProxy closes it.

        The response can therefore contain any text, such as a replica's error message.
        """
        return await self._within_timeout(self._query(command))

    async def send(self, commands: Sequence[str]) -> Replies:
        """Send several commands on one connection, and read a reply for each.

        If a command is rejected, the remaining commands are still executed.
        """
        texts: list[str] = []
        result = await self._within_timeout(self._send(commands, texts), texts)
        return Replies(tuple(texts), result.failure)

    async def _within_timeout(self, work: Awaitable[Replies], texts: Sequence[str] = ()) -> Replies:
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError:
            return Replies(tuple(texts), f"{self.address} did not respond within {self._timeout:g} s")
        except asyncio.IncompleteReadError:
            return Replies(tuple(texts), f"{self.address} closed the connection before the end of its response")
        except (asyncio.LimitOverrunError, _EndlessError):
            return Replies(tuple(texts), f"{self.address} did not end its response: is it HAProxy's Runtime API?")
        except OSError as error:
            return Replies(tuple(texts), f"{self.address}: {reason_of(error)}")

    async def _query(self, command: str) -> Replies:
        async with self._open() as (reader, writer):
            writer.write(f"{command}\n".encode())
            await writer.drain()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            texts: list[str] = []
            size = lines = 0
            while piece := await reader.read(_PIECE):
                size += len(piece)
                lines += piece.count(b"\n")
                if size > MAX_ANSWER_BYTES or lines > MAX_LINES:
                    raise _EndlessError
                texts.append(decoder.decode(piece))
        return Replies(("".join((*texts, decoder.decode(b"", final=True))),))

    async def _send(self, commands: Sequence[str], texts: list[str]) -> Replies:
        async with self._open() as (reader, writer):
            writer.write(b"prompt\n")
            await reader.readuntil(_PROMPT)
            for start in range(0, len(commands), _BATCH):
                batch = commands[start : start + _BATCH]
                if not self._permit():
                    return Replies(tuple(texts), NOT_PERMITTED)
                writer.write("".join(f"{each}\n" for each in batch).encode())
                await writer.drain()
                for _ in batch:
                    reply = await reader.readuntil(_PROMPT)
                    texts.append(reply.removesuffix(_PROMPT).decode(errors="replace").strip()[:_SHOWN])
        return Replies(())

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Streams]:
        reader, writer = await self._connect()
        try:
            yield reader, writer
        finally:
            writer.transport.abort()  # close() would wait for a peer that does not read

    async def _connect(self) -> Streams:
        family, at, rest = self.address.partition("@")
        if not at or family not in ("ipv4", "ipv6"):
            return await asyncio.open_unix_connection(self.address, limit=MAX_REPLY_BYTES)
        host, _, port = rest.rpartition(":")
        host = host.strip("[]")
        if not (is_ip(host) and is_loopback(host)) or not port.isdigit():
            raise OSError("not a loopback address, and the Runtime API has no authentication")
        return await asyncio.open_connection(host, int(port), limit=MAX_REPLY_BYTES)

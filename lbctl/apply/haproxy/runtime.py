"""A client of HAProxy's Runtime API, on a unix socket or on TCP of loopback.

What goes wrong is words in the answer, no exception: a proxy that is being restarted is nothing extraordinary. The API
knows no authentication and separates commands by `;` and line feeds, so only whole commands of `commands` come here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

_PROMPT = b"\n> "
_MOST = 64 * 1024 * 1024
"""Bytes of one answer."""
_AT_ONCE = 100
"""Commands sent before their replies are read: what HAProxy holds for us stays small."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Replies:
    """One text for each command that was answered, in their order, and why the others were not."""

    texts: tuple[str, ...]
    failure: str = ""


class Runtime:
    """`place`: a path, or `ipv4@127.0.0.1:9999`, `ipv6@[::1]:9999`. `timeout`: seconds for each question."""

    def __init__(self, place: str, timeout: float = 5.0) -> None:
        self.place = place
        self._timeout = timeout

    async def ask(self, question: str) -> Replies:
        """One command on a connection of its own, whose end is the answer's: for answers in which a replica's words may
        stand."""
        return await self._bounded(self._ask(question))

    async def tell(self, commands: Sequence[str]) -> Replies:
        """Many commands on one connection, each with its own reply; a refused one stops none of the others."""
        known: list[str] = []
        done = await self._bounded(self._tell(commands, known), known)
        return Replies(tuple(known), done.failure)

    async def _bounded(self, work: object, known: Sequence[str] = ()) -> Replies:
        assert asyncio.iscoroutine(work)
        try:
            return await asyncio.wait_for(work, self._timeout)
        except TimeoutError:
            return Replies(tuple(known), f"{self.place} did not answer within {self._timeout:g} s")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return Replies(tuple(known), f"{self.place} closed the connection in the middle")
        except OSError as error:
            return Replies(tuple(known), f"{self.place}: {error.strerror or error}")

    async def _ask(self, question: str) -> Replies:
        async with self._open() as (reader, writer):
            writer.write(f"{question}\n".encode())
            await writer.drain()
            text = await reader.read(-1)
        return Replies((text.decode(errors="replace"),))

    async def _tell(self, commands: Sequence[str], known: list[str]) -> Replies:
        async with self._open() as (reader, writer):
            writer.write(b"prompt\n")
            await reader.readuntil(_PROMPT)
            for start in range(0, len(commands), _AT_ONCE):
                some = commands[start : start + _AT_ONCE]
                writer.write("".join(f"{each}\n" for each in some).encode())
                await writer.drain()
                for _ in some:
                    reply = await reader.readuntil(_PROMPT)
                    known.append(reply.removesuffix(_PROMPT).decode(errors="replace").strip())
        return Replies(())

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Streams]:
        reader, writer = await self._connected()
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _connected(self) -> Streams:
        family, at, rest = self.place.partition("@")
        if not at or family not in ("ipv4", "ipv6"):
            return await asyncio.open_unix_connection(self.place, limit=_MOST)
        host, _, port = rest.rpartition(":")
        host = host.strip("[]")
        if not _is_loopback(host) or not port.isdigit():
            raise OSError("not an address of loopback; the Runtime API asks nobody who they are")
        return await asyncio.open_connection(host, int(port), limit=_MOST)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

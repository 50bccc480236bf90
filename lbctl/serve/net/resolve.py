"""One question to the DNS: the addresses behind a name, or the words why there are none.

With resolvers they are asked, else the system is (its hosts file, its resolv.conf). An IPv6 address counts only where a
name has no IPv4 address at all, as a proxy that resolves by itself is told to see it: a machine with both is one
replica. Addresses that no replica can have, link-local ones with the metadata service of clouds before all, are
refused, whoever says them. Nothing is kept, and nothing is asked twice: that is for `discover`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lbctl.base.errors import reason_of
from lbctl.base.hosts import is_forbidden, parse_ip
from lbctl.ir.address import Address

if TYPE_CHECKING:
    import dns.asyncresolver

_PAYLOAD = 1232
"""Bytes of an answer over UDP that no network cuts; longer ones come by TCP."""


class UnresolvedError(Exception):
    """There is no usable answer; the words say why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """At least one address, all of one family, in their order; `refused`: those that were left out."""

    addresses: tuple[str, ...]
    refused: tuple[str, ...] = ()


async def resolve(name: str, resolvers: Sequence[Address], patience: float) -> Answer:
    """The addresses of `name`, within `patience` seconds. UnresolvedError."""
    with _cancellable():
        try:
            async with asyncio.timeout(patience):
                found = await (_asked(name, resolvers, patience) if resolvers else _by_system(name))
        except TimeoutError:
            raise UnresolvedError(f"no answer within {patience:g} s") from None
    return answer(found)


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise CancelledError if the task was cancelled inside and went on.

    dnspython waits with `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes at the same moment
    as an answer. Its task would never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


def answer(found: Iterable[str]) -> Answer:
    """What is usable of the addresses that were found. UnresolvedError."""
    known = {parse_ip(item) for item in found}
    good = sorted((item for item in known if not is_forbidden(item)), key=int)
    bad = tuple(str(item) for item in sorted(known - set(good), key=int))
    family = [item for item in good if item.version == 4] or good
    if not family:
        raise UnresolvedError(f"no replica can have these: {', '.join(bad)}" if bad else "the name has no address")
    return Answer(tuple(str(item) for item in family), bad)


async def _asked(name: str, resolvers: Sequence[Address], patience: float) -> list[str]:
    """IPv6 is asked for only where IPv4 is known to be none: half an answer must not change the family."""
    import dns.exception  # heavy, and for fleets that name resolvers alone
    import dns.resolver

    resolver = _resolver(resolvers, patience)
    try:
        for kind in ("A", "AAAA"):
            reply = await resolver.resolve(f"{name.rstrip('.')}.", kind, search=False, raise_on_no_answer=False)
            found = [record.address for record in reply.rrset or ()]
            if found:
                return found
    except dns.resolver.NXDOMAIN:
        raise UnresolvedError("there is no such name") from None
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise UnresolvedError(reason_of(error)) from None
    return []


def _resolver(resolvers: Sequence[Address], patience: float) -> dns.asyncresolver.Resolver:
    import dns.asyncresolver
    import dns.nameserver

    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [dns.nameserver.Do53Nameserver(item.host, item.port) for item in resolvers]
    resolver.timeout = patience / (2 * len(resolvers))
    resolver.lifetime = patience
    resolver.use_edns(0, 0, _PAYLOAD)
    return resolver


async def _by_system(name: str) -> list[str]:
    """A thread for each question, ended with the process: the system's resolver cannot be interrupted."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def deliver(result: list[str] | Exception) -> None:
        if not future.done():
            future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)

    threading.Thread(target=_look_up, args=(name, loop, deliver), name=f"dns {name}", daemon=True).start()
    try:
        return await future
    except OSError as error:
        raise UnresolvedError(reason_of(error)) from None


def _look_up(name: str, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[str] | Exception], None]) -> None:
    result: list[str] | Exception
    try:
        result = [str(item[4][0]) for item in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        result = OSError(0, reason_of(error))
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(deliver, result)

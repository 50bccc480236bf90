"""Resolves a single name to its addresses.

If resolvers are given, they are queried; otherwise, the operating system's resolver is used (with its hosts file and
resolv.conf). IPv6 addresses are used only if a name has no IPv4 addresses, because a machine with both is one replica;
proxies that resolve names themselves are configured in the same way. Addresses that are not valid for a replica are
rejected, in particular all link-local addresses, because clouds serve credentials there. This module neither caches nor
retries; this is done by `discovery.dns`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lbctl.base.errors import reason_of
from lbctl.base.hosts import is_forbidden, parse_ip
from lbctl.ir.address import Address

if TYPE_CHECKING:
    import dns.asyncresolver

_MAX_UDP_PAYLOAD = 1232
"""Maximum size, in bytes, of a UDP response that networks do not fragment. Larger responses are sent over TCP."""


_Result = list[str] | Exception
_pending: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Future[_Result]]] = WeakKeyDictionary()
"""Maps each event loop to its pending lookups by name."""


class UnresolvedError(Exception):
    """A name has no usable address. The message states the reason."""


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """A name's usable addresses."""

    addresses: tuple[str, ...]
    """At least one address. All addresses belong to the same family and are in ascending order."""
    refused: tuple[str, ...] = ()
    """Addresses for the name that are not valid for a replica."""


async def resolve(name: str, resolvers: Sequence[Address], timeout: float) -> DnsAnswer:
    """Resolve `name` within `timeout` seconds. Raises UnresolvedError."""
    with _cancellable():
        try:
            async with asyncio.timeout(timeout):
                addresses = await (_by_resolvers(name, resolvers, timeout) if resolvers else _by_system(name))
        except TimeoutError:
            raise UnresolvedError(f"no response within {timeout:g} s") from None
    return usable_answer(addresses)


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise CancelledError if the task was cancelled inside the block but continued to run.

    dnspython uses `asyncio.wait_for`, which in Python versions before 3.12 loses a cancellation that arrives together
    with a response. A task that continues to run would never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        yield
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError


def usable_answer(addresses: Iterable[str]) -> DnsAnswer:
    """Return the usable addresses among these. Raises UnresolvedError if there are none."""
    parsed = {parse_ip(item) for item in addresses}
    allowed = sorted((item for item in parsed if not is_forbidden(item)), key=int)
    refused = tuple(str(item) for item in sorted(parsed - set(allowed), key=int))
    family = [item for item in allowed if item.version == 4] or allowed
    if not family:
        invalid = f"these addresses are not valid for a replica: {', '.join(refused)}"
        raise UnresolvedError(invalid if refused else "the name has no addresses")
    return DnsAnswer(tuple(str(item) for item in family), refused)


async def _by_resolvers(name: str, resolvers: Sequence[Address], timeout: float) -> list[str]:
    """Query the resolvers.

    IPv6 is queried only after a response without IPv4 addresses, because a lost response must not change the address
    family.
    """
    import dns.exception  # slow to import, and needed only for fleets that name resolvers
    import dns.resolver

    resolver = _resolver(resolvers, timeout)
    try:
        for kind in ("A", "AAAA"):
            reply = await resolver.resolve(f"{name.rstrip('.')}.", kind, search=False, raise_on_no_answer=False)
            addresses = [record.address for record in reply.rrset or ()]
            if addresses:
                return addresses
    except dns.resolver.NXDOMAIN:
        raise UnresolvedError("the name does not exist") from None
    except (dns.exception.DNSException, OSError, ValueError) as error:
        raise UnresolvedError(reason_of(error)) from None
    return []


def _resolver(resolvers: Sequence[Address], timeout: float) -> dns.asyncresolver.Resolver:
    import dns.asyncresolver
    import dns.nameserver

    resolver = dns.asyncresolver.Resolver(configure=False)
    resolver.nameservers = [dns.nameserver.Do53Nameserver(item.host, item.port) for item in resolvers]
    resolver.timeout = timeout / (2 * len(resolvers))
    resolver.lifetime = timeout
    resolver.use_edns(0, 0, _MAX_UDP_PAYLOAD)
    return resolver


async def _by_system(name: str) -> list[str]:
    """Query the system's resolver in one daemon thread per name, because it cannot be interrupted.

    A thread keeps running after a timeout, so a hung resolver would accumulate threads. A second lookup of the same
    name therefore waits for the first one.
    """
    pending = _pending.setdefault(asyncio.get_running_loop(), {})
    if name not in pending:
        pending[name] = _started(name, pending)
    result = await asyncio.shield(pending[name])
    if isinstance(result, Exception):
        raise UnresolvedError(reason_of(result)) from None
    return result


def _started(name: str, pending: dict[str, asyncio.Future[_Result]]) -> asyncio.Future[_Result]:
    """Start the thread that looks up a name, and return a future for its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def deliver(result: _Result) -> None:
        pending.pop(name, None)
        if not future.done():
            future.set_result(result)

    threading.Thread(target=_look_up, args=(name, loop, deliver), name=f"dns {name}", daemon=True).start()
    return future


def _look_up(name: str, loop: asyncio.AbstractEventLoop, deliver: Callable[[_Result], None]) -> None:
    result: _Result
    try:
        result = [str(item[4][0]) for item in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        result = OSError(0, reason_of(error))
    with suppress(RuntimeError):  # the event loop has ended in the meantime
        loop.call_soon_threadsafe(deliver, result)

"""Closes the connections with the largest incomplete messages when the memory of the process grows.

A call always waits for its next message, and gRPC keeps the received part. The number of bytes sent by a client is
known from its socket, and the bytes of read messages are counted here. The difference is the amount that gRPC keeps.
lbctl closes the connections of the clients with the largest difference only if the process has grown considerably.
Other clients are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from lbctl.xds.protocol.allocator import trim
from lbctl.xds.protocol.connection import Client, borrowed, connections_of, shut_down

MAX_GROWTH = 16 << 20
"""Growth of the process in bytes within `_WINDOW` above which connections are closed."""
MIN_UNREAD = 256 << 10
"""Minimum number of unread bytes from a client for its connection to be closed."""
_WINDOW = 30.0
"""Window in seconds. The memory is compared with its minimum in this and the previous window."""
_INTERVAL, _IDLE_INTERVAL = 0.02, 0.5
_PART_OF_TIME = 20
"""Ratio of the pause after a scan that closes nothing to the duration of the scan."""
_FREED, _TRIM = 2.0, 0.2
"""Seconds after a close during which free memory is returned to the system, and seconds between two returns."""
_PRUNE = 60.0
_SLOW = 4 << 10
"""Number of bytes per connection in `_PRUNE` seconds that count as read. For example, responses to pings are not
messages.
"""
_CALL, _MESSAGE, _PART = 2_048, 128, 64
"""Allowance for the framing of messages: bytes per call and per message, and a divisor of the bytes that were read."""
_BYTES_RECEIVED = 128
"""Offset of `tcpi_bytes_received` in `struct tcp_info` of linux/tcp.h."""
_LOG = logging.getLogger(__name__)


class UnreadMessages:
    """The clients of one server. `busy` returns the clients that have calls."""

    def __init__(self, busy: Callable[[], Collection[Client]], resident: Callable[[], int] | None = None) -> None:
        """Create the object; call `run` to start watching.

        `resident` returns the resident memory of the process in bytes.
        """
        self._busy = busy
        self._resident = resident or _Memory().resident
        self._read: Counter[Client] = Counter()
        """Maps a client to the maximum number of bytes that it can have sent for the messages read so far."""
        self._unread: dict[Client, int] = {}
        """Maps a client to the number of unread bytes at the last scan."""
        self._least = self._least_before = float("inf")

    def begin(self, client: Client) -> None:
        """Record that a client has started a call."""
        self._read[client] += _CALL

    def note_read(self, client: Client, size: int) -> None:
        """Record that a message of a client was read."""
        self._read[client] += size + size // _PART + _MESSAGE

    async def run(self, port: int) -> None:
        """Watch the memory until cancelled, for the connections to this port.

        This runs in a thread, because a client that opens many calls keeps the event loop busy.
        """
        over = threading.Event()
        threading.Thread(target=self._watch, args=(port, over), daemon=True).start()
        try:
            while True:
                await asyncio.sleep(_PRUNE)
                if self._read:
                    found = await asyncio.to_thread(connections_of, port)
                    self._forget(found)
                    self._forgive(found)
        finally:
            over.set()

    def _watch(self, port: int, over: threading.Event) -> None:
        turned, closed_at, trimmed, pause = time.monotonic(), float("-inf"), 0.0, _INTERVAL
        while not over.wait(pause if self._read else _IDLE_INTERVAL):
            now, pause = time.monotonic(), _INTERVAL
            if now >= turned + _WINDOW:
                turned, self._least_before, self._least = now, self._least, float("inf")
            if self._grown() <= MAX_GROWTH:
                continue
            if self.look(port):
                closed_at = now
            else:
                pause = max(pause, _PART_OF_TIME * (time.monotonic() - now))
            if now < closed_at + _FREED and now >= trimmed + _TRIM:
                trimmed = now
                trim()

    def look(self, port: int) -> int:
        """Close connections until they account for the growth of the process, or no other connection uses much memory.

        Returns the number of closed connections.
        """
        found = connections_of(port)
        unread = self._unread_of(found)
        wanted = self._grown()
        closed: dict[Client, int] = {}
        for client, size in unread.most_common():
            if wanted <= 0 or size < MIN_UNREAD:
                break
            closed[client] = found[client]
            wanted -= size
        shut_down(closed)
        if closed:
            fields = {"connections": len(closed), "peer": next(f"{host}:{port}" for host, port in closed)}
            _LOG.warning("closed connections of clients that did not finish their messages", extra={"fields": fields})
        return len(closed)

    def _grown(self) -> int:
        """Return the growth of the process within the window, in bytes."""
        resident = self._resident()
        self._least = min(self._least, resident)
        return int(resident - min(self._least, self._least_before))

    def _forget(self, found: Mapping[Client, int]) -> None:
        """Forget disconnected clients."""
        kept = found.keys() | set(self._busy())
        for client in [client for client in self._read if client not in kept]:
            del self._read[client]

    def _forgive(self, found: Mapping[Client, int]) -> None:
        """Count slowly sent bytes as read, so that they do not add up over days."""
        unread = self._unread_of(found)
        for client in unread.keys() & self._read.keys():
            before = self._unread.get(client, 0)
            if 0 < unread[client] - before <= _SLOW:
                self._read[client] += unread[client] - before
                unread[client] = before
        self._unread = dict(unread)

    def _unread_of(self, found: Mapping[Client, int]) -> Counter[Client]:
        read = dict(self._read)
        return Counter({client: count - read.get(client, 0) for client, count in _received(found).items()})


def _received(found: Mapping[Client, int]) -> dict[Client, int]:
    """Map each client to the number of bytes received from it; empty on systems that do not count them."""
    received: dict[Client, int] = {}
    for client, descriptor in found.items():
        with suppress(OSError, struct.error), borrowed(descriptor) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            received[client] = struct.unpack_from("Q", info, _BYTES_RECEIVED)[0]
    return received


class _Memory:
    """The memory of this process.

    The file for this number stays open, because there may be no free descriptor to reopen it.
    """

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self._file)

    def resident(self) -> int:
        """Return the resident memory in bytes."""
        return int(os.pread(self._file, 100, 0).split()[1]) * resource.getpagesize()

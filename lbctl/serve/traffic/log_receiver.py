"""Receives the traffic log from the fleet's proxies by syslog over UDP, only on loopback.

Lines are counted per replica until they are collected, so that memory use does not grow with the number of lines. At
most about fifty thousand lines are read per second; any more are lost in the kernel's buffer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from lbctl.control.analysis.latency import bucket
from lbctl.ir.address import Address
from lbctl.ir.rollout_metrics import LatencyKey
from lbctl.serve.traffic.ledger import NO_COUNTS, Counts, Latencies, ReplicaKey
from lbctl.serve.traffic.log_line import MAX_LINE_BYTES, NO_REPLICA, Dropped, ReplicaAddresses, tries_of
from lbctl.serve.traffic.timer_line import Timers, timers_of
from lbctl.targets.haproxy import desired

_BATCH = 500
"""Number of lines read before other work continues."""
_PAUSE = 0.005
"""Seconds until the next batch, because waking up for each line would cost more than reading it. A buffer of the usual
size (Linux grants 208 KiB) has room for about 330 lines."""
_BUFFER = 1 << 20
"""Number of bytes of unread lines that the kernel may buffer."""


class LogReceiver:
    """Counts the requests in the proxies' lines. Its methods are called in the event loop."""

    def __init__(self) -> None:
        self.address: Address | None = None
        """The receiver's listen address; None if it is not listening."""
        self.dropped: Counter[Dropped] = Counter()
        """Number of ignored lines by reason."""
        self._socket: socket.socket | None = None
        self._proxies: frozenset[str] = frozenset()
        self._addresses = ReplicaAddresses((), {})
        self._timed: frozenset[str] = frozenset()
        self._replicas: frozenset[ReplicaKey] = frozenset()
        self._slots: dict[str, Mapping[tuple[str, str], str]] = {}
        """Maps each timed proxy and (backend, spare server) pair to the name of the replica that uses it."""
        self._measured: frozenset[LatencyKey] = frozenset()
        self._counts: dict[str, dict[ReplicaKey, Counts]] = {}
        self._answered: dict[str, set[ReplicaKey]] = {}
        self._own_errors: dict[str, Counter[str]] = {}
        self._latencies: dict[str, dict[LatencyKey, Counter[int]]] = {}
        self._first_bytes: dict[str, dict[ReplicaKey, Counter[int]]] = {}

    def open(self, bind: Address) -> None:
        """Listen on this address. Raises OSError."""
        family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            opened.bind((bind.host, bind.port))
        except OSError:
            opened.close()
            raise
        self._socket = opened
        self.address = Address(bind.host, opened.getsockname()[1])
        asyncio.get_running_loop().add_reader(opened, self._read)

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = self.address = None

    def use_proxies(
        self,
        proxies: Iterable[str],
        addresses: ReplicaAddresses,
        timed: Iterable[str] = (),
        replicas: frozenset[ReplicaKey] = frozenset(),
        measured: Iterable[LatencyKey] = (),
    ) -> None:
        """From now on, count these proxies' lines about these replicas.

        `timed`: proxies that log only timers and a replica's name. Only latencies in `measured` are kept.
        """
        self._proxies, self._addresses = frozenset(proxies), addresses
        self._timed, self._replicas, self._measured = frozenset(timed), replicas, frozenset(measured)
        self._slots = {name: slots for name, slots in self._slots.items() if name in self._timed}

    def set_slots(self, proxy: str, slots: Mapping[tuple[str, str], str]) -> None:
        """Set the replicas that use a timed proxy's spare servers, by (backend, server)."""
        self._slots[proxy] = slots

    def collect(self) -> Mapping[str, Mapping[ReplicaKey, Counts]]:
        """Map each proxy and replica to the counts since the last call."""
        counts, self._counts = self._counts, {}
        return counts

    def collect_answered(self) -> Mapping[str, Collection[ReplicaKey]]:
        """Map each proxy to the replicas that have responded since the last call.

        If a client disconnected, the replica may not have responded.
        """
        answered, self._answered = self._answered, {}
        return answered

    def collect_own_errors(self) -> Mapping[str, Mapping[str, int]]:
        """Map each proxy and pool to the errors that the proxy itself has generated since the last call."""
        errors, self._own_errors = self._own_errors, {}
        return errors

    def collect_latencies(self) -> Mapping[str, Latencies]:
        """Map each proxy to the latencies reported since the last call."""
        latencies, self._latencies = self._latencies, {}
        return latencies

    def collect_first_bytes(self) -> Mapping[str, Mapping[ReplicaKey, Counter[int]]]:
        """Map each proxy and replica to the times to first byte since the last call.

        If a line names only the pool, the replica name is empty.
        """
        first_bytes, self._first_bytes = self._first_bytes, {}
        return first_bytes

    def count(self, line: bytes) -> None:
        """Count one line."""
        if (timers := timers_of(line)) is not None:
            self._count_timers(timers)
            return
        result = tries_of(line, self._proxies, self._addresses)
        if isinstance(result, str):
            self.dropped[result] += 1
            return
        proxy, tries = result
        counts = self._counts.setdefault(proxy, {})
        for replica, failed, answered, first_byte, total in tries:
            if replica.replica == NO_REPLICA:
                self._own_errors.setdefault(proxy, Counter())[replica.pool] += 1
                continue
            counts[replica] = counts.get(replica, NO_COUNTS) + Counts(1, int(failed))
            if answered:
                self._answered.setdefault(proxy, set()).add(replica)
            self._measure(proxy, replica, first_byte, total, answered=answered)

    def _count_timers(self, timers: Timers) -> None:
        if timers.proxy not in self._timed:
            self.dropped["proxy"] += 1
            return
        pool, place = desired.pool_name(timers.backend), (timers.backend, timers.server)
        if not self._addresses.has(pool):  # HAProxy also logs requests that it answers without a pool
            return
        replica = ReplicaKey(pool, self._slots.get(timers.proxy, {}).get(place, timers.server))
        if replica not in self._replicas:
            replica = ReplicaKey(pool, "")
        self._measure(timers.proxy, replica, timers.first_byte, timers.total, answered=timers.answered)

    def _measure(
        self, proxy: str, replica: ReplicaKey, first_byte: float | None, total: float | None, *, answered: bool
    ) -> None:
        """Record a request's times.

        For a rollout, a disconnected client is treated as having waited; views show only responses.
        """
        if answered and first_byte is not None:
            self._first_bytes.setdefault(proxy, {}).setdefault(replica, Counter())[bucket(first_byte)] += 1
        for metric, value in (("first_byte", first_byte), ("total", total)):
            key = LatencyKey(replica.pool, metric)
            if value is not None and key in self._measured:
                self._latencies.setdefault(proxy, {}).setdefault(key, Counter())[bucket(value)] += 1

    def _read(self) -> None:
        if self._socket is None:
            return
        for _ in range(_BATCH):
            try:
                line = self._socket.recv(MAX_LINE_BYTES + 1)
            except (BlockingIOError, InterruptedError):
                break
            self.count(line)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.call_later(_PAUSE, self._read_again)

    def _read_again(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._read)

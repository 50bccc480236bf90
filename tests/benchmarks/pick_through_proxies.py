"""The cost of a pick for requests through a real Envoy, HAProxy and nginx: a part of `tests.benchmarks.picks`.

Each proxy runs twice under `lbctl serve`, with `least_request` and with `pick`, and both get requests in turns. Two
clients send a POST of 4 KiB with a session header, each request after the response to the one before. The replicas are
a process that responds at once. Processor times are from /proc, with the children of a proxy.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.benchmarks.peers import processes
from tests.benchmarks.peers.systems import Started, under_serve
from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.ports import HOST
from tests.support.processes.waiting import eventually

REQUESTS = 6_000
_TURN, _WARM_UP, _CLIENTS, _SESSIONS = 2_000, 300, 2, 1_000
_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_BODY = json.dumps({"model": "m", "prompt": "hello " * 680}).encode()
_BALANCE: dict[str, Fleet] = {
    "static": {"algorithm": "least_request"},
    "pick": {"algorithm": "pick", "pick": {"prefix": "off", "session": ["x-session-id"]}},
}


class _Goal(NamedTuple):
    """Upper bounds in milliseconds: processor time of proxy and picker, and the growth of the median."""

    processor: float
    added_median: float


_GOALS: dict[Kind, _Goal] = {"envoy": _Goal(0.40, 0.35), "haproxy": _Goal(0.32, 0.25), "nginx": _Goal(0.25, 0.35)}


@dataclass(slots=True)
class _Cost:
    """The requests of one proxy."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    processor: list[float] = field(default_factory=list)
    """Seconds of processor time of each process of the data path."""

    def milliseconds(self) -> tuple[list[float], float, float]:
        """Return the processor time of each process and of all of them for a request, and the median of a request."""
        each = [value / len(self.seconds) * 1e3 for value in self.processor]
        return each, sum(each), statistics.median(self.seconds) * 1e3


# ── The replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Replica(asyncio.Protocol):
    """Responds to each request as soon as its body is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := _end(self._received)) and len(self._received) >= end:
            self._received = self._received[end:]
            self._transport.write(_RESPONSE)


def _end(received: bytes) -> int:
    """Return the length of the first message, by its headers; 0 while they are incomplete."""
    head, end, _ = received.partition(b"\r\n\r\n")
    length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r")[0]
    return len(head) + len(end) + int(length or 0) if end else 0


def _serve(listeners: Sequence[socket.socket]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for listener in listeners:
            await loop.create_server(_Replica, sock=listener)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def _replicas(count: int) -> Iterator[list[Fleet]]:
    """Run replicas in one process, and yield the items of a pool."""
    listeners = [socket.create_server((HOST, 0)) for _ in range(count)]
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(listeners,), daemon=True)
    process.start()
    try:
        yield [
            {"name": f"r{number}", "address": f"{HOST}:{listener.getsockname()[1]}"}
            for number, listener in enumerate(listeners)
        ]
    finally:
        process.terminate()
        process.join(20)
        for listener in listeners:
            listener.close()


# ── The clients ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _send(port: int, numbers: Sequence[int]) -> tuple[list[float], int]:
    """Send the requests one after the other, and return the seconds of each and the number of failed ones."""
    seconds, failed = [], 0
    connection = socket.create_connection((HOST, port), 30)
    for number in numbers:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
            f"x-session-id: s{number % _SESSIONS}\r\ncontent-length: {len(_BODY)}\r\n\r\n"
        )
        started = time.perf_counter()
        received = _response(connection, head.encode() + _BODY)
        seconds.append(time.perf_counter() - started)
        failed += not received.startswith(b"HTTP/1.1 200 ")
        if not received or b"\r\nconnection: close\r\n" in received.lower():
            connection.close()
            connection = socket.create_connection((HOST, port), 30)
    connection.close()
    return seconds, failed


def _response(connection: socket.socket, request: bytes) -> bytes:
    """Return the response; empty if the connection has ended before."""
    received = b""
    try:
        connection.sendall(request)
        while not (end := _end(received)) or len(received) < end:
            piece = connection.recv(65536)
            if not piece:
                return b""
            received += piece
    except OSError:
        return b""
    return received


def _load(port: int, requests: int) -> tuple[list[float], int]:
    """Return the seconds of each request of all clients, and the number of failed ones."""
    with ThreadPoolExecutor(_CLIENTS) as clients:
        parts = [range(client, requests, _CLIENTS) for client in range(_CLIENTS)]
        loads = list(clients.map(lambda numbers: _send(port, numbers), parts))
    return [value for seconds, _ in loads for value in seconds], sum(failed for _, failed in loads)


def _take_turn(started: Started, requests: int, cost: _Cost) -> None:
    """Send requests, and add their cost."""
    before = [processes.seconds([pid]) for pid in started.data_path]
    seconds, failed = _load(started.port, requests)
    used = [processes.seconds([pid]) - value for pid, value in zip(started.data_path, before, strict=True)]
    cost.seconds += seconds
    cost.failed += failed
    cost.processor = [old + new for old, new in zip(cost.processor or [0.0] * len(used), used, strict=True)]


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _measure(kind: Kind, members: list[Fleet], requests: int) -> tuple[_Cost, _Cost]:
    """Return the costs with `least_request` and with `pick`. Fails if a request of the second was not picked."""
    static, pick = ({"replicas": members, "balance": balance} for balance in _BALANCE.values())
    with under_serve(kind, static, "static") as plain, under_serve(kind, pick, "pick") as picked:
        assert picked.plane is not None
        plane = picked.plane
        costs = _Cost(), _Cost()
        for started in (plain, picked):
            _take_turn(started, _WARM_UP, _Cost())
        picks = plane.metric("lbctl_pick_decisions_total")
        for first in range(0, requests, _TURN):
            for started, cost in zip((plain, picked), costs, strict=True):
                _take_turn(started, min(_TURN, requests - first), cost)
        eventually(lambda: plane.metric("lbctl_pick_decisions_total") - picks >= requests - costs[1].failed)
    return costs


def through_proxies(requests: int = REQUESTS) -> None:
    """Print a row for each proxy: milliseconds for a request, with the goals in parentheses."""
    print(
        f"{requests} requests for each: processor time and median of a request in ms\n"
        f"{'':9}{'static':>8}{'proxy':>8} + {'picker':>6} = {'pick':<15}{'added':>6}"
        f"{'static p50':>13}{'pick p50':>10}{'added':>8}{'failed':>17}",
        flush=True,
    )
    with _replicas(3) as members:
        for kind in KINDS:
            static, pick = _measure(kind, members, requests)
            _, plain, plain_median = static.milliseconds()
            (proxy, picker), whole, median = pick.milliseconds()
            goal = _GOALS[kind]
            print(
                f"{kind:<9}{plain:8.3f}{proxy:8.3f} + {picker:6.3f} = {whole:5.3f} (<= {goal.processor:.2f}) "
                f"{whole - plain:6.3f}{plain_median:13.2f}{median:10.2f}{median - plain_median:8.2f} "
                f"(<= {goal.added_median:.2f}){static.failed + pick.failed:6}",
                flush=True,
            )

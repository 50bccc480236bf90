"""Clients that exhaust the resources of a listener: connections, calls, endless messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.exceptions

HOST = "127.0.0.1"
_PIECE = 1 << 14


class Target(NamedTuple):
    """The address of a listener, and the headers that its clients need."""

    port: int
    headers: Mapping[str, str] = MappingProxyType({})


Attack = Callable[[Target, threading.Event], None]
"""Behaviour of a thread towards a listener, until the event is set."""


@contextmanager
def attacking(target: Target, *attacks: Attack) -> Iterator[None]:
    """Run each attack in a separate thread during the block."""
    over = threading.Event()
    threads = [threading.Thread(target=_run, args=(attack, target, over), daemon=True) for attack in attacks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def _run(attack: Attack, target: Target, over: threading.Event) -> None:
    while not over.is_set():
        with suppress(OSError, h2.exceptions.ProtocolError):
            attack(target, over)
        over.wait(0.2)


def connections(count: int, first: bytes = b"", rest: bytes = b"", pause: float = 0.2) -> Attack:
    """Return an attack with many connections: each sends the first bytes, and one of the rest after each pause."""

    def attack(target: Target, over: threading.Event) -> None:
        held: list[socket.socket] = []
        try:
            for _ in range(count):
                held.append(socket.create_connection((HOST, target.port), 5))
                held[-1].setblocking(False)
                _send(held[-1], first)
            step = 0
            while not over.wait(pause):
                for connection in held:
                    _send(connection, rest[step % len(rest) :][:1] if rest else b"")
                step += 1
        finally:
            for connection in held:
                connection.close()

    return attack


def flood(first: bytes, repeated: bytes) -> Attack:
    """Return an attack with one connection that sends endlessly, and restarts when it is closed."""

    def attack(target: Target, over: threading.Event) -> None:
        with socket.create_connection((HOST, target.port), 5) as connection:
            connection.settimeout(0.5)
            connection.sendall(first)
            piece = repeated * max(1, _PIECE // len(repeated))
            while not over.is_set():
                with suppress(TimeoutError):
                    connection.sendall(piece)

    return attack


def calls(path: str, count: int, message: bytes = b"", *, length: int | None = None) -> Attack:
    """Return an attack with many gRPC calls on one connection, none of which ends.

    Each sends the given message and nothing more. With `length`, each only announces a message of `length` bytes.
    """
    begun = message if length is None else message[:length] + bytes(max(0, length - len(message) - 1))
    framed = b"" if not begun else b"\x00" + (length or len(message)).to_bytes(4, "big") + begun
    headers = {
        ":method": "POST", ":scheme": "http", ":authority": "127.0.0.1", ":path": path,
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip

    def attack(target: Target, over: threading.Event) -> None:
        with socket.create_connection((HOST, target.port), 5) as connection:
            _Calls(connection, {**headers, **target.headers}, framed).run(count, over)

    return attack


class _Calls:
    def __init__(self, connection: socket.socket, headers: Mapping[str, str], message: bytes) -> None:
        self._connection = connection
        self._headers = list(headers.items())
        self._message = message
        self._left: dict[int, int] = {}
        """Maps a call to the number of unsent bytes of its message."""
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))

    def run(self, count: int, over: threading.Event) -> None:
        """Keep `count` calls open until the event is set."""
        self._connection.settimeout(0.05)
        self._http2.initiate_connection()
        while not over.is_set():
            while len(self._left) < count:
                number = self._http2.get_next_available_stream_id()
                self._http2.send_headers(number, self._headers)
                self._left[number] = len(self._message)
            self._send()
            with suppress(TimeoutError):
                self._receive(self._connection.recv(1 << 16))

    def _send(self) -> None:
        for number, left in self._left.items():
            size = min(left, self._http2.local_flow_control_window(number), self._http2.max_outbound_frame_size)
            if size > 0:
                start = len(self._message) - left
                self._http2.send_data(number, self._message[start : start + size])
                self._left[number] = left - size
        self._connection.settimeout(5)
        self._connection.sendall(self._http2.data_to_send())
        self._connection.settimeout(0.05)

    def _receive(self, data: bytes) -> None:
        if not data:
            raise ConnectionError
        for event in self._http2.receive_data(data):
            if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self._left.pop(event.stream_id, None)
            elif isinstance(event, h2.events.DataReceived):
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.send(data)


def peak_of(pid: int, block: Callable[[], None]) -> float:
    """Run a block, and return the maximum growth of the process in that time, in MB."""
    before, peak, over = _resident(pid), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, _resident(pid))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        block()
    finally:
        over.set()
        thread.join(10)
    return peak - before


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / 1e6

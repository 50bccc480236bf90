"""A picker that a test controls: it names replicas, dies, hangs, or sends invalid responses, and records its queries.

For Envoys it also has the gRPC service to which they report the ends of requests.
"""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from lbctl.picker import spop_frames
from tests.support.processes.ports import HOST

_SERVICE, _TAG = "envoy.service.accesslog.v3.AccessLogService", "x-lbctl-pick-id"
_READY = b"HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\nlbctl picker ready\n"
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
Pick = Callable[["Asked"], str | None]

_END = re.compile(rb"\"?(?:pick|left)\"?[=:] ?\"(?:late-)?(id-[0-9]+|[0-9a-f-]{36})\"")
"""Id of a pick as HAProxy and nginx report it. nginx also reports ids that a request has left for a fallback."""
_MOVED = re.compile(rb'retries="\+|"moved":true')
"""Their report that another replica served the request."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One query. `headers` has lowercase names."""

    target: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedPicker:
    """Listens by TCP and UDP on the same port, which is one above `port`, and by gRPC on `port` itself.

    `addresses` is replica → address, for Envoys.
    """

    def __init__(self, port: int, pick: Pick, addresses: Mapping[str, str]) -> None:
        self.port = port
        self.pick = pick
        self.addresses = addresses
        self.raw: bytes | None = None
        """Response in place of a pick. If it is empty, the connection is closed."""
        self.must_wait = False
        """Whether the requests of Envoys have to wait, so that their picks follow in a second query."""
        self.delay = 0.0
        self._is_stranger = False
        self._numbers = itertools.count()
        self.asked: list[Asked] = []
        self.ended: list[str] = []
        self.moved: list[str] = []
        """Ids in `ended` whose request another replica served."""
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._running = threading.Event()
        self._running.set()
        self._ends = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._ends.bind((HOST, port + 1))
        self._ends.settimeout(0.1)
        self._grpc = grpc.server(ThreadPoolExecutor(4), handlers=[self._ends_of_envoys()])
        self._grpc.add_insecure_port(f"{HOST}:{port}")
        self._grpc.start()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read_ends, daemon=True)
        self._reader.start()

    def start(self) -> None:
        """Start listening."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self.port + 1))
        listener.listen(1024)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def kill(self) -> None:
        """Close the port and every connection, like the end of the process."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in tuple(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def hang(self) -> None:
        """Accept connections but send nothing, neither there nor on old ones."""
        self._running.clear()

    def slow(self) -> None:
        """Respond after all timeouts have expired."""
        self.delay = 5.0

    def lose_port(self) -> None:
        """End, and let another program have the port: a web server without any page."""
        self.kill()
        self._is_stranger = True
        self.start()

    def heal(self) -> None:
        """Respond again."""
        self.delay, self.raw, self._is_stranger = 0.0, None, False
        self.kill()
        self._running.set()
        self.start()

    def close(self) -> None:
        """Close both ports."""
        self.kill()
        self._running.set()
        self._closed.set()
        self._reader.join()
        self._ends.close()
        self._grpc.stop(0)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self._is_stranger:
                    _serve_as_stranger(connection)
                    return
                if connection.recv(1, socket.MSG_PEEK) == b"\0":
                    self._serve_spop(connection)
                    return
                while (asked := _read(connection)) is not None:
                    self._running.wait()
                    if asked.target == "/ready":
                        connection.sendall(_READY)
                        continue
                    self.asked.append(asked)
                    time.sleep(self.delay)
                    self._answer(connection, asked)
            except OSError:
                return
            finally:
                self._connections.discard(connection)

    def _serve_spop(self, connection: socket.socket) -> None:
        """Answer HAProxy, which may query again before it has the answers to earlier queries."""
        while (frame := _read_frame(connection)) is not None:
            self._running.wait()
            if frame.kind == spop_frames.NOTIFY:
                threading.Thread(target=self._answer_frame, args=(connection, frame), daemon=True).start()
            elif frame.kind == spop_frames.HAPROXY_HELLO:
                size = spop_frames.values(frame.payload)[b"max-frame-size"]
                connection.sendall(spop_frames.hello(int(size or 0)))
            else:
                connection.sendall(spop_frames.disconnect(0, "bye"))
                return

    def _answer_frame(self, connection: socket.socket, frame: spop_frames.Frame) -> None:
        asked = _asked(frame)
        self.asked.append(asked)
        time.sleep(self.delay)
        name = self.pick(asked)
        variables = [] if name is None else [(b"replica", name.encode())]
        with suppress(OSError):
            connection.sendall(spop_frames.ack(frame, variables) if self.raw is None else self.raw)
            if self.raw is not None:
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket, asked: Asked) -> None:
        name = self.pick(asked)
        is_envoy = asked.target.startswith("/envoy")
        head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" if is_envoy else "HTTP/1.1 204 No Content\r\n\r\n"
        if name is not None and is_envoy:
            replica, pick = self.addresses.get(name, name), f"id-{next(self._numbers)}"
            head = f"HTTP/1.1 200 OK\r\nx-lbctl-replicas: {replica}\r\nx-lbctl-pick-id: {pick}\r\n"
            head += "content-length: 0\r\n\r\n"
        if is_envoy and self.must_wait and not asked.target.startswith("/envoy/wait?"):
            head = "HTTP/1.1 200 OK\r\nx-lbctl-pick-id: waits\r\nx-lbctl-must-wait: 1\r\ncontent-length: 0\r\n\r\n"
        elif name is not None and not is_envoy:
            pick = asked.headers.get("x-lbctl-pick-id", f"id-{next(self._numbers)}")
            head = f"HTTP/1.1 200 OK\r\nx-lbctl-pick: {name}\r\nx-lbctl-pick-id: {pick}\r\ncontent-length: 0\r\n\r\n"
        connection.sendall(head.encode() if self.raw is None else self.raw)
        if self.raw == b"":
            connection.shutdown(socket.SHUT_RDWR)

    def _ends_of_envoys(self) -> grpc.GenericRpcHandler:
        def read(messages: Iterator[StreamAccessLogsMessage], _: grpc.ServicerContext) -> bytes:
            for message in messages:
                self.ended += [item.common_properties.custom_tags[_TAG] for item in message.http_logs.log_entry]
            return b""

        method: grpc.RpcMethodHandler[StreamAccessLogsMessage, bytes]
        method = grpc.stream_unary_rpc_method_handler(read, request_deserializer=StreamAccessLogsMessage.FromString)
        return grpc.method_handlers_generic_handler(_SERVICE, {"StreamAccessLogs": method})

    def _read_ends(self) -> None:
        while not self._closed.is_set():
            try:
                line = self._ends.recv(65536)
            except TimeoutError:
                continue
            ended = [match.decode() for match in _END.findall(line)]
            self.ended += ended
            self.moved += ended if _MOVED.search(line) else []


def _serve_as_stranger(connection: socket.socket) -> None:
    """Answer as a web server without any page does: 400 to what is not HTTP, else 404."""
    if connection.recv(1, socket.MSG_PEEK) == b"\0":
        connection.recv(65536)
        connection.sendall(_BAD_REQUEST)
        return
    while _read(connection) is not None:
        connection.sendall(_NOT_FOUND)


def _read(connection: socket.socket) -> Asked | None:
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            return None
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return Asked(first.split(" ")[1], headers, body)


def _read_frame(connection: socket.socket) -> spop_frames.Frame | None:
    """Return the next frame of SPOP; None at the end of the connection."""
    size = _receive(connection, spop_frames.LENGTH_BYTES)
    data = _receive(connection, int.from_bytes(size, "big")) if size else b""
    return spop_frames.read(data) if data else None


def _receive(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes; none if the connection ends before."""
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            return b""
        received += piece
    return received


def _asked(frame: spop_frames.Frame) -> Asked:
    """Return the query of a NOTIFY frame, with the names of the headers that other proxies send."""
    fields: dict[str, str] = {}
    headers: dict[str, str] = {}
    body, values = b"", []
    for name, value in spop_frames.arguments(frame.payload):
        if name == b"body":
            body = value if isinstance(value, bytes) else b""
        elif name == b"value":
            values.append(value)
        elif isinstance(value, bytes):
            fields[name.decode()] = value.decode()
    for header, value in zip(fields.get("headers", "").split(), values, strict=True):
        if isinstance(value, bytes):
            headers[header] = value.decode()
    for header, field in (("pick-id", "id"), ("body-length", "length"), ("tenant", "tenant"), ("proxy", "proxy")):
        if field in fields:
            headers[f"x-lbctl-{header}"] = fields[field]
    if "key" in fields:
        headers["x-lbctl-pick-key"] = fields["key"]
    return Asked(fields["target"], headers, body)


@contextmanager
def scripted_picker(port: int, pick: Pick, addresses: Mapping[str, str] | None = None) -> Iterator[ScriptedPicker]:
    """Run a picker that responds from the start. `addresses` is replica → address, if an Envoy queries it."""
    picker = ScriptedPicker(port, pick, addresses or {})
    picker.start()
    try:
        yield picker
    finally:
        picker.close()

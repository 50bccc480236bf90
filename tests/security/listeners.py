"""The listeners of lbctl, each with an honest client, and with hostile clients that hold on to what it gives them."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
import requests
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from lbctl.picker import bounded_calls, connection, connection_limits, http_protocol, spop_frames
from lbctl.picker.admission import HEADER
from lbctl.picker.spop import MAX_FRAME_BYTES
from lbctl.runtime.net import connections as api_connections
from lbctl.xds.protocol.server import Limits
from lbctl.xds.protocol.unread_messages import MAX_GROWTH
from lbctl.xds.resource import CDS
from tests.support import spop
from tests.support.hostile_clients import HOST, Attack, Target, calls, connections, flood

PROCESS, COUNTS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process", "/lbctl.picker.Exchange/Counts"
MEMORY, COPY = "/lbctl.picker.Affinity/Changes", "/lbctl.picker.Affinity/Table"
AGGREGATED = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
NODE = "edge"
_RANDOM = bytes((index * 7919 + index // 251) % 256 for index in range(50_000))
_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A row of the table of readers in SECURITY.md."""

    name: str
    """The first column."""
    bound: str
    """The second column, made of the constants in the code."""
    by_picker: bool
    """Whether the picker process listens; otherwise `serve` does."""
    port: str
    """The name of the port in the fixture."""
    honest: Callable[[Target], bool]
    """Ask a question as a proxy or a command does, and return whether it was answered."""
    hostile: Mapping[str, Sequence[Attack]] = field(repr=False)
    """Kind of hostile client → its attacks, which run at the same time."""


def _http(path: str) -> Callable[[Target], bool]:
    def ask(target: Target) -> bool:
        with suppress(requests.RequestException), requests.Session() as session:
            session.trust_env = False
            url = f"http://{HOST}:{target.port}{path}"
            return session.get(url, headers=target.headers, timeout=_TIMEOUT).status_code == 200
        return False

    return ask


def _grpc(path: str, message: bytes) -> Callable[[Target], bool]:
    def ask(target: Target) -> bool:
        requests_of_call: queue.Queue[bytes | None] = queue.Queue()
        requests_of_call.put(message)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with suppress(grpc.RpcError), grpc.insecure_channel(f"{HOST}:{target.port}", options=options) as channel:
            metadata = tuple(target.headers.items())
            call = channel.stream_stream(path)(iter(requests_of_call.get, None), _TIMEOUT, metadata)
            try:
                return bool(next(call, b""))
            finally:
                requests_of_call.put(None)
        return False

    return ask


def _spop_query(target: Target, *arguments: tuple[str, bytes]) -> bytes:
    key = ("key", spop.string(target.headers.get(HEADER, "")))
    return spop.notify([key, ("target", spop.string("/pick/pool")), *arguments])


def _ask_by_spop(target: Target) -> bool:
    with suppress(OSError), socket.create_connection((HOST, target.port), _TIMEOUT) as client:
        client.sendall(spop.hello() + _spop_query(target))
        return spop.read(client)[4:5] == b"\x65" and bool(spop.replica_of(spop.read(client)))
    return False


def _deep_bodies(target: Target, over: threading.Event) -> None:
    """Send queries with the key and bodies that are nested as deeply as a frame allows."""
    flood(spop.hello(), _spop_query(target, ("body", spop.string(b"[" * 60_000))))(target, over)


def _question() -> ProcessingRequest:
    request = ProcessingRequest()
    request.request_headers.headers.headers.add(key="x-session-id", raw_value=b"s")
    request.request_headers.end_of_stream = True
    return request


def _subscription() -> DiscoveryRequest:
    request = DiscoveryRequest(type_url=CDS)
    request.node.id = NODE
    return request


def _deep(request: ProcessingRequest | DiscoveryRequest, field_numbers: bytes) -> bytes:
    """Return the message with a value in its metadata that is nested a thousand levels deep."""
    value = b""
    for _ in range(1_000):
        value = _field(b"\x32", _field(b"\x0a", value))  # list_value of a Value, values of a ListValue
    entry = _field(b"\x0a", b"k") + _field(b"\x12", value)
    struct = _field(b"\x0a", entry)
    if len(field_numbers) == 2:  # a map from names to structs
        struct = _field(field_numbers[1:], _field(b"\x0a", b"n") + _field(b"\x12", struct))
    return request.SerializeToString() + _field(field_numbers[:1], struct)


def _field(tag: bytes, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length += bytes((size & 127 | 128,))
        size >>= 7
    return tag + length + bytes((size,)) + content


def _deep_node() -> bytes:
    """Return a subscription whose node has deeply nested metadata."""
    node = _field(b"\x0a", NODE.encode()) + _deep(DiscoveryRequest(), b"\x1a")
    return _field(b"\x12", node) + _field(b"\x22", CDS.encode())


_UNREAD = f"{MAX_GROWTH >> 20} MiB of unfinished messages"
_GRPC_BOUND = (
    f"{bounded_calls.MAX_MESSAGE} B per message, {bounded_calls.MAX_READING} first messages at once, "
    f"{bounded_calls.FIRST_TIMEOUT:g} s for each, {_UNREAD}"
)
_LIMITS = Limits()
_SILENT = connections(300)
_NO_HTTP2 = connections(20, _RANDOM[:4_000])
_HELLO, _LONG_FRAME = spop.hello(), MAX_FRAME_BYTES.to_bytes(4, "big")
_MANY_VALUES = spop.frame(spop.NOTIFY, (b"\x00\xff" + b"\x00\x00" * 255) * 2_000)
_MALFORMED_FRAME = spop.frame(spop.NOTIFY, _RANDOM[:4_000])

LISTENERS = (
    Listener(
        "picker, gRPC",
        f"{_GRPC_BOUND}. {bounded_calls.MAX_QUESTIONS} queries that wait for their body, "
        f"{bounded_calls.MAX_HELD_BYTES >> 20} MiB of them, {bounded_calls.BODY_TIMEOUT:g} s for each",
        True,
        "picker",
        _grpc(PROCESS, _question().SerializeToString()),
        {
            "endless": [calls(PROCESS, 150, b"\x0a", length=1_200_000)] * 2,
            "slow": [calls(PROCESS, 200), _SILENT],
            "deep": [calls(PROCESS, 20, _deep(_question(), b"\x42\x0a"))],
            "malformed": [calls(PROCESS, 20, _RANDOM), _NO_HTTP2],
        },
    ),
    Listener(
        "picker, HTTP",
        f"{http_protocol.MAX_HEAD_BYTES} B per head, {http_protocol.MAX_BODY_BYTES} B per body, "
        f"{connection.QUESTION_TIMEOUT:g} s for both; {connection_limits.MAX_CONNECTIONS} connections, "
        f"{connection_limits.MAX_HELD_BYTES >> 20} MiB of unfinished queries",
        True,
        "picker_http",
        _http("/pick/pool"),
        {
            "endless": [flood(b"POST /pick/pool HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n", b"x")] * 2
            + [connections(200, b"POST /pick/pool HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 150_000)],
            "slow": [connections(300, b"GET /pick/pool HTTP/1.1\r\n", b"x: y\r\n")],
            "deep": [flood(b"", b"POST /pick/pool HTTP/1.1\r\ncontent-length: 60000\r\n\r\n" + b"[" * 60_000)],
            "malformed": [connections(100, _RANDOM[:4_000]), flood(b"", _RANDOM[:4_000])],
        },
    ),
    Listener(
        "picker, SPOP",
        f"{MAX_FRAME_BYTES} B and {spop_frames.MAX_VALUES} values per frame, {connection.QUESTION_TIMEOUT:g} s per "
        "frame; connections and unfinished queries count like those over HTTP",
        True,
        "picker_http",
        _ask_by_spop,
        {
            "endless": [
                flood(_LONG_FRAME, b"x"),
                flood(_HELLO, spop.notify([("body", spop.string(b"x" * 60_000))])),
                connections(200, _HELLO + _LONG_FRAME + b"x" * 150_000),
            ],
            "slow": [connections(300, _LONG_FRAME, b"\x03")],
            "deep": [flood(_HELLO, _MANY_VALUES), _deep_bodies],
            "malformed": [connections(100, _HELLO + _MALFORMED_FRAME), flood(b"", b"\x00" + _RANDOM[:4_000])],
        },
    ),
    Listener(
        "exchange between pickers",
        _GRPC_BOUND,
        True,
        "picker",
        _grpc(PROCESS, _question().SerializeToString()),
        {
            "endless": [calls(method, 150, b"[", length=1_200_000) for method in (COUNTS, MEMORY)],
            "slow": [calls(COUNTS, 100), calls(MEMORY, 100)],
            "deep": [calls(method, 20, b"[" * 50_000) for method in (COUNTS, MEMORY)],
            "malformed": [calls(method, 20, _RANDOM) for method in (COUNTS, MEMORY, COPY)],
        },
    ),
    Listener(
        "xDS",
        f"{_LIMITS.message} B per message; without a client certificate {_LIMITS.first_messages} first messages at "
        f"once, {_LIMITS.patience:g} s for each, and {_LIMITS.host_streams} streams per host; {_UNREAD}",
        False,
        "xds",
        _grpc(AGGREGATED, _subscription().SerializeToString()),
        {
            "endless": [calls(AGGREGATED, 150, b"\x0a", length=4_000_000)] * 2,
            "slow": [calls(AGGREGATED, 300)] * 2 + [_SILENT],
            "deep": [calls(AGGREGATED, 20, _deep_node())],
            "malformed": [calls(AGGREGATED, 20, _RANDOM), _NO_HTTP2],
        },
    ),
    Listener(
        "API",
        f"64 head lines of 8190 B, 65536 B per body, {api_connections.FIRST_REQUEST:g} s for each; "
        f"{api_connections.MAX_CONNECTIONS} connections, {api_connections.MAX_HELD_BYTES >> 20} MiB "
        "of unfinished requests",
        False,
        "api",
        _http("/api/v1/status"),
        {
            "endless": [
                connections(200, b"GET / HTTP/1.1\r\nhost: localhost\r\n" + (b"x: " + b"y" * 8_000 + b"\r\n") * 20),
                flood(b"GET /api/v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
            ],
            "slow": [
                connections(
                    300,
                    b"POST /api/v1/picks/explain HTTP/1.1\r\nhost: localhost\r\n"
                    b"content-type: application/json\r\ncontent-length: 60000\r\n\r\n",
                    b"{",
                )
            ],
            "deep": [
                flood(
                    b"",
                    b"POST /api/v1/picks/explain HTTP/1.1\r\nhost: localhost\r\n"
                    b"content-type: application/json\r\ncontent-length: 60000\r\n\r\n" + b"[" * 60_000,
                )
            ],
            "malformed": [connections(100, _RANDOM[:4_000]), flood(b"", _RANDOM[:4_000])],
        },
    ),
)

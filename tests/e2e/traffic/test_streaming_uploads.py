"""Bodies of any size and form reach the replica completely."""

from __future__ import annotations

import random
import socket
import time

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas

_MIB = 1 << 20


def _text(size: int) -> bytes:
    return random.Random(size).randbytes(size // 2).hex().encode()


def test_large_bodies_arrive_complete(kind: Kind) -> None:
    body = _text(2 * _MIB)
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway:
        counted = gateway.post("/v1/chat", body)
        chunked = gateway.post("/v1/chat", body, chunked=True)
    for answer in (counted, chunked):
        assert answer.ok, str(answer)
        assert answer.json["body"].encode() == body
    assert [seen.body == body for seen in a.seen] == [True, True]


def test_chunked_bodies_of_any_size_arrive_complete(kind: Kind) -> None:
    bodies = [b"", b"x", _text(20_000), _text(200_000), bytes(range(256)) * 100]
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway:
        for body in bodies:
            assert gateway.post("/v1/chat", body, chunked=True).ok
    assert [seen.body for seen in a.seen] == bodies


def test_concurrent_large_bodies_arrive_complete(kind: Kind) -> None:
    bodies = {number: _text(_MIB + 2 * number) for number in range(4)}
    with replicas("a", "b") as (a, b), running(kind, fleet_of([a, b])) as gateway:
        started = [gateway.send("POST", f"/{number}", body=body, chunked=number % 2 == 1)
                   for number, body in bodies.items()]  # fmt: skip
        assert [future.result(100).ok for future in started] == [True] * 4
    assert {int(seen.path[1:]): seen.body for seen in (*a.seen, *b.seen)} == bodies


def test_slow_body_arrives_complete(kind: Kind) -> None:
    """The time limit of the request headers does not apply to the body."""
    listener = {"timeouts": {"request_headers": "1s"}}
    with (
        replicas("a") as (a,),
        running(kind, fleet_of([a], listener=listener)) as gateway,
        _connected(gateway.port) as client,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(6):
            time.sleep(0.25)
            client.sendall(b"5\r\nhello\r\n")
        client.sendall(b"0\r\n\r\n")
        assert _head(client).startswith(b"HTTP/1.1 200")
    assert a.seen[-1].body == b"hello" * 6


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_slow_body_whose_model_is_read_arrives_complete(kind: Kind) -> None:
    route = {"match": {"path_prefix": "/", "model": ["gpt"]}}
    body = b'{"messages": "hello", "model": "gpt"}'
    with (
        replicas("a") as (a,),
        running(kind, fleet_of([a], listener={"timeouts": {"request_headers": "1s"}}, route=route)) as gateway,
        _connected(gateway.port) as client,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 7):
            time.sleep(0.25)
            client.sendall(body[start : start + 7])
        assert _head(client).startswith(b"HTTP/1.1 200")
    assert a.seen[-1].body == body


def test_expect_continue_is_answered(kind: Kind) -> None:
    body = _text(300_000)
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway, _connected(gateway.port) as client:
        head = f"POST /v1/chat HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode())
        assert _head(client).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert _head(client).startswith(b"HTTP/1.1 200")
    assert [seen.body for seen in a.seen] == [body]


def _connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=30)


def _head(client: socket.socket) -> bytes:
    """Return the next head of a response, and no byte after it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = client.recv(1)
        assert piece, f"closed after {head!r}"
        head += piece
    return head

"""A body above the listener's limit gets a 413, with or without a declared length, and reaches no replica."""

from __future__ import annotations

import socket

import pytest

from tests.support.processes.binaries import Kind, is_rendered_for
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas
from tests.support.processes.shared import shared, shared_replicas

_LIMIT = 64 << 10


def _listener(size: str = "64KiB") -> dict[str, object]:
    return {"max_body": size}


def test_body_above_the_limit_is_a_413(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener())) as gateway:
        answer = gateway.post(body=b"x" * (_LIMIT + 1))
        assert gateway.post(body=b"x").ok
    assert (answer.status, answer.header("content-type"), answer.replica) == (413, "application/json", None)
    assert answer.json["error"]["type"] == "too_large"
    assert a.requests == 1


@pytest.mark.parametrize("size", [_LIMIT + 1, 30 * _LIMIT])
def test_chunked_body_does_not_evade_the_limit(kind: Kind, size: int) -> None:
    """HAProxy counts the bytes in its buffer, and requires a length for more.

    It closes the connection immediately, so that a reset may overtake its response to a large body.
    """
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener())) as gateway:
        answer = gateway.post(body=b"x" * size, chunked=True)
        assert gateway.post(body=b"x").ok
    if kind == "haproxy" and size > _LIMIT + 1 and not answer.status:
        assert answer.error == "reset"
    else:
        allowed = (411, 413) if kind == "haproxy" else (413,)
        assert (answer.status in allowed, answer.header("content-type")) == (True, "application/json")
    assert a.requests == 1


def test_short_chunked_body_is_counted(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener("4KiB"))) as gateway:
        answers = [gateway.post(body=b"x" * size, chunked=True) for size in (1, 4096, 4097, 6000)]
    assert [answer.status for answer in answers] == [200, 200, 413, 413]
    assert answers[2].json["error"]["type"] == "too_large"
    assert [len(seen.body) for seen in a.seen] == [1, 4096]


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_body_is_counted_during_external_auth(kind: Kind) -> None:
    with replicas("a", "auth") as (a, auth):
        auth.behave(delay=0.05)
        route = {"auth": {"external": {"url": f"http://{auth.address}/check"}}}
        with running(kind, fleet_of([a], route=route, listener=_listener("4KiB"))) as gateway:
            for chunked in (False, True):
                sizes = (4096, 4097, 30_000, 200_000, 700_000)
                answers = [gateway.post(body=b"x" * size, chunked=chunked) for size in sizes]
                assert [answer.status for answer in answers] == [200, 413, 413, 413, 413]
            auth.behave(status=401)
            assert gateway.post(body=b"x" * 4096).status == 401
        assert [len(seen.body) for seen in a.seen] == [4096, 4096]


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_http2_get_with_a_body_does_not_evade_the_limit(kind: Kind) -> None:
    def frame(type_: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes((type_, flags)) + stream.to_bytes(4) + payload

    get = frame(1, 4, 1, b"\x82\x86\x84\x01\x01h")
    body = b"".join(frame(0, 0, 1, b"x" * 8192) for _ in range(7)) + frame(0, 1, 1, b"x" * 8000)
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener("1KiB"))) as gateway:
        with socket.create_connection(("127.0.0.1", gateway.port), 60) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + get + body)
            (line,) = gateway.access_log(1)  # before the connection ends: that would end the request
        accepts_http2 = kind == "envoy" or not is_rendered_for(kind, "3.3")
        assert line["status"] == (413 if accepts_http2 else 405)
    assert a.requests == 0


def test_body_at_the_limit_arrives(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener())) as gateway:
        assert gateway.post(body=b"x" * _LIMIT).ok
        if kind != "haproxy":
            assert gateway.post(body=b"y" * _LIMIT, chunked=True).ok
    assert {len(seen.body) for seen in a.seen} == {_LIMIT}


def test_limit_may_exceed_the_default_of_the_proxy(kind: Kind) -> None:
    """The defaults are 1 MiB for nginx and for Envoy's buffer filter, and the buffer size for HAProxy."""
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener("5MiB"))) as gateway:
        assert gateway.post(body=b"x" * (4 << 20)).ok
        # a proxy that closes immediately may reset the connection while data is in transit, before its response is read
        assert gateway.post(body=b"x" * (6 << 20)).status in ((413, 0) if kind == "haproxy" else (413,))
    assert [len(seen.body) for seen in a.seen] == [4 << 20]


def test_request_without_a_body_is_not_limited(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], listener=_listener())) as gateway:
        answers = [gateway.request(method, "/") for method in ("GET", "DELETE", "OPTIONS", "POST")]
        long = [(f"x-{number}", "y" * 3500) for number in range(4)]
        answers += [gateway.get(headers=long[:count]) for count in (1, 4)]
    assert [answer.status for answer in answers] == [200] * 6
    assert a.requests == 6


def test_each_listener_has_its_own_limit(kind: Kind) -> None:
    with shared_replicas("a") as pool:
        fleet = fleet_of(pool, listener=_listener())
        other = fleet_of(pool, listener=_listener("1MiB"))["listeners"]["gateway"]
        with shared(kind, {**fleet, "listeners": {**fleet["listeners"], "wide": other}}) as gateway:
            body = b"x" * (_LIMIT + 1)
            assert (gateway.post(body=body).status, gateway.connect("wide").post(body=body).status) == (413, 200)


def test_large_body_is_retried_on_another_replica(kind: Kind) -> None:
    with replicas("a", "b") as (a, b), running(kind, fleet_of([a, b], listener=_listener("5MiB"))) as gateway:
        b.refuse()
        answers = [gateway.post(body=b"x" * (3 << 20)) for _ in range(6)]
    assert [answer.replica for answer in answers] == ["a"] * 6

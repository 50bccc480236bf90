"""gRPC calls pass with streams, metadata and status codes, over TLS and, if the proxy supports it, in cleartext."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind, is_rendered_for
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.grpc_replica import GrpcReplica, grpc_replicas
from tests.support.processes.ports import has_clients
from tests.support.processes.waiting import eventually

_ECHO = "/inference.GRPCInferenceService/Infer"
_STREAM = "/inference.GRPCInferenceService/InferStream"
_NAME = "models.example.com"


def _fleet(replicas: list[GrpcReplica], route: dict[str, Any] | None = None, **listener: Any) -> Fleet:
    pool = pool_of(replicas, protocol="grpc", balance={"algorithm": "round_robin"})
    return fleet_of(pool, route=route, listener=listener)


@contextmanager
def _over_tls(
    kind: Kind, replicas: list[GrpcReplica], directory: Path, route: dict[str, Any] | None = None
) -> Iterator[Gateway]:
    with _served_over_tls(kind, _fleet(replicas, route), directory) as gateway:
        yield gateway


@contextmanager
def _served_over_tls(kind: Kind, fleet: Fleet, directory: Path) -> Iterator[Gateway]:
    authority = Authority(directory)
    pair = authority.issue(_NAME)
    files = {"tls/a.crt": pair.certificate.read_bytes(), "tls/a.key": pair.key.read_bytes()}
    fleet["listeners"]["gateway"]["tls"] = {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}
    with running(kind, fleet, files=files, tls=client_context(authority.ca), server_name=_NAME) as gateway:
        yield gateway


def test_call_is_answered_over_tls(kind: Kind, tmp_path: Path) -> None:
    with grpc_replicas("a") as (a,), _over_tls(kind, [a], tmp_path) as gateway:
        reply = gateway.grpc(_ECHO, b"\x00\xff" * 50_000, x_user="u1", trace_id="t1")
    assert (reply.code, reply.messages, reply.replica) == ("OK", (b"\x00\xff" * 50_000,), "a")
    metadata = dict(a.seen[-1].metadata)
    assert (a.seen[-1].method, metadata["x-user"], metadata["trace-id"]) == (_ECHO, "u1", "t1")


def test_messages_of_a_stream_arrive_as_they_are_sent(kind: Kind, tmp_path: Path) -> None:
    with grpc_replicas("a") as (a,), _over_tls(kind, [a], tmp_path) as gateway:

        def arrive_apart() -> bool:
            """A busy machine may deliver two messages of a stream together; a proxy that buffers always does."""
            reply = gateway.grpc(_STREAM, b"token", count="5", gap="0.2")
            assert (reply.code, reply.messages) == ("OK", (b"token",) * 5)
            return min(later - earlier for earlier, later in pairwise(reply.at)) > 0.1

        eventually(arrive_apart)


def test_call_is_rewritten(kind: Kind, tmp_path: Path) -> None:
    route = {"match": {"path_prefix": "/models/a.b"}, "rewrite": {"path_prefix": "/"}}
    with grpc_replicas("a") as (a,), _over_tls(kind, [a], tmp_path, route) as gateway:
        reply = gateway.grpc(f"/models/a.b{_ECHO}", b"x")
    assert (reply.code, reply.messages, a.seen[-1].method) == ("OK", (b"x",), _ECHO)


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_call_is_mirrored(kind: Kind, tmp_path: Path) -> None:
    rewritten = {"match": {"path_prefix": "/rewritten.Service"}, "rewrite": {"path_prefix": "/other"}}
    with grpc_replicas("a", "shadow") as (a, shadow):
        fleet = _fleet([a], {"mirror": {"pool": "shadow"}})
        fleet["routes"]["rewritten"] = {**rewritten, "pool": "pool", "mirror": {"pool": "shadow"}}
        fleet["pools"]["shadow"] = pool_of([shadow], protocol="grpc")
        with _served_over_tls(kind, fleet, tmp_path) as gateway:
            replies = [gateway.grpc(method, b"x") for method in (_ECHO, "/rewritten.Service/Infer")]
            eventually(lambda: shadow.requests == 2)
    assert [(reply.code, reply.replica) for reply in replies] == [("OK", "a")] * 2
    for replica in (a, shadow):
        calls = sorted((call.method, call.payload) for call in replica.seen)
        assert calls == [(_ECHO, b"x"), ("/other/Infer", b"x")], replica.name


def test_status_of_a_replica_is_passed_on_without_retry(kind: Kind, tmp_path: Path) -> None:
    codes = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "INVALID_ARGUMENT")
    with grpc_replicas("a", "b") as (a, b), _over_tls(kind, [a, b], tmp_path) as gateway:
        for number, code in enumerate(codes, 1):
            a.behave(code=code)
            b.behave(code=code)
            reply = gateway.grpc(_ECHO, b"x")
            assert (reply.code, "told to by the test" in reply.details) == (code, True)
            assert a.requests + b.requests == number, code


def test_calls_spread_and_survive_a_refusing_replica(kind: Kind, tmp_path: Path) -> None:
    loses = kind == "haproxy" and is_rendered_for(kind, "3.1")
    with grpc_replicas("a", "b") as (a, b), _over_tls(kind, [a, b], tmp_path) as gateway:
        assert {reply.replica for reply in gateway.grpc_load(_ECHO, 12, 3)} == {"a", "b"}
        b.refuse()
        eventually(lambda: not has_clients(b.port))  # data sent on a connection that ends is lost, and not sent again
        replies = gateway.grpc_load(_ECHO, 12, 4)
        messages = gateway.messages
    assert ("returns 502 without a retry" in messages) == loses
    assert {reply.code for reply in replies} == ({"OK", "UNAVAILABLE"} if loses else {"OK"})
    assert {reply.replica for reply in replies if reply.code == "OK"} == {"a"}


def test_call_without_a_replica_is_unavailable(kind: Kind, tmp_path: Path) -> None:
    with grpc_replicas("a") as (a,), _over_tls(kind, [a], tmp_path) as gateway:
        a.refuse()
        assert {reply.code for reply in gateway.grpc_load(_ECHO, 5)} == {"UNAVAILABLE"}


def test_method_without_a_route_is_unimplemented(kind: Kind, tmp_path: Path) -> None:
    route = {"match": {"path_prefix": "/inference.GRPCInferenceService/"}}
    with grpc_replicas("a") as (a,), _over_tls(kind, [a], tmp_path, route) as gateway:
        assert {reply.code for reply in gateway.grpc_load("/other.Service/Call", 5)} == {"UNIMPLEMENTED"}
        assert gateway.grpc(_ECHO, b"x").ok
    assert a.requests == 1


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_cleartext_calls_pass_next_to_plain_http(kind: Kind) -> None:
    with grpc_replicas("a") as (a,), running(kind, _fleet([a], http2=True)) as gateway:
        reply = gateway.grpc(_ECHO, b"x")
        stream = gateway.grpc(_STREAM, b"token", count="3")
        assert gateway.get("/elsewhere").status > 0
    assert (reply.code, reply.messages, reply.replica) == ("OK", (b"x",), "a")
    assert stream.messages == (b"token",) * 3


def test_nginx_reports_that_cleartext_is_http1_only() -> None:
    page = {"match": {"path": "/page"}, "respond": {"status": 200, "body": "x"}}
    with grpc_replicas("a") as (a,):
        fleet = _fleet([a], http2=True)
        with running("nginx", {**fleet, "routes": {**fleet["routes"], "page": page}}) as gateway:
            assert "warning LB405" in gateway.messages
            assert gateway.grpc(_ECHO, b"x").code == "UNAVAILABLE"


def test_nginx_takes_cleartext_calls_on_a_listener_for_grpc() -> None:
    with grpc_replicas("a") as (a,), running("nginx", _fleet([a])) as gateway:
        assert "LB405" not in gateway.messages
        reply = gateway.grpc(_ECHO, b"x")
        stream = gateway.grpc(_STREAM, b"token", count="3")
    assert (reply.code, reply.messages, stream.messages) == ("OK", (b"x",), (b"token",) * 3)

"""A compressed body is decoded to read its model, or rejected with the reason; it never goes to another pool."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas

_BODY = json.dumps({"messages": "hello " * 3000, "model": "gpt"}).encode()
_ZSTD = bytes.fromhex("28b52ffd04588900007b20226d6f64656c223a2022677074227de5065ebf")
"""`{ "model": "gpt"}`, as the program zstd compresses it."""
_BROTLI = bytes.fromhex("0b08807b20226d6f64656c223a2022677074227d03")
"""The same, uncompressed within a stream of brotli."""


@contextmanager
def _gateway(kind: Kind) -> Iterator[tuple[Gateway, Replica, Replica]]:
    with replicas("gpt", "other") as (gpt, other):
        route = {"match": {"path_prefix": "/v1", "model": ["gpt"]}, "pool": "gpt"}
        with running(kind, fleet_of([other], routes={"gpt": route}, pools={"gpt": pool_of([gpt])})) as gateway:
            yield gateway, gpt, other


def _headers(coding: str) -> dict[str, str]:
    return {"content-type": "application/json", "content-encoding": coding}


def test_envoy_reads_gzip_zstd_and_brotli() -> None:
    with _gateway("envoy") as (gateway, gpt, other):
        for coding, body in (("gzip", gzip.compress(_BODY)), ("zstd", _ZSTD), ("br", _BROTLI)):
            assert gateway.post("/v1/chat", body, _headers(coding)).replica == "gpt", coding
    assert [(seen.header("content-encoding"), seen.body) for seen in gpt.seen] == [
        (None, _BODY), (None, b'{ "model": "gpt"}'), (None, b'{ "model": "gpt"}')
    ]  # fmt: skip
    assert other.requests == 0


@pytest.mark.parametrize(("kind", "coding"), [("envoy", "deflate"), ("haproxy", "deflate"), ("haproxy", "gzip")])
def test_unread_coding_is_a_415_with_the_reason(kind: Kind, coding: str) -> None:
    body = gzip.compress(_BODY) if coding == "gzip" else zlib.compress(_BODY)
    with _gateway(kind) as (gateway, gpt, other):
        refused = gateway.post("/v1/chat", body, _headers(coding))
        named = gateway.post("/v1/chat", body, {**_headers(coding), "x-model": "gpt"})
        elsewhere = gateway.post("/files", body, _headers(coding))
    assert (refused.status, "compressed" in refused.json["error"]["message"]) == (415, True)
    assert (named.replica, elsewhere.replica) == ("gpt", "other")
    assert [seen.header("content-encoding") for seen in (gpt.seen[-1], other.seen[-1])] == [coding] * 2


def test_body_that_grows_beyond_inspect_is_a_413() -> None:
    with _gateway("envoy") as (gateway, gpt, other):
        bomb = gzip.compress(json.dumps({"messages": "x" * (20 << 20), "model": "gpt"}).encode())
        assert gateway.post("/v1/chat", bomb, _headers("gzip")).status == 413
    assert gpt.requests + other.requests == 0

"""Events of a stream arrive as they are sent, and a stream that falls silent beyond `idle` ends."""

from __future__ import annotations

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_PROMPT = 0.1
"""Seconds between a replica's sending and the client's receiving."""


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_events_arrive_as_they_are_sent(kind: Kind, method: str) -> None:
    """The best of five, since the machine may be busy; a proxy that holds back is late every time."""
    body = b'{"stream": true}' if method == "POST" else b""
    with replicas("a") as pool, running(kind, fleet_of(pool)) as gateway:
        streams = [gateway.request(method, "/sse?n=4&gap=0.15&first=0.1", body=body) for _ in range(5)]
    events = [stream.events() for stream in streams]
    assert [len(each) for each in events] == [4] * 5
    assert all(stream.ok and stream.header("content-type") == "text/event-stream" for stream in streams)
    for number in range(4):
        assert min(each[number].lag for each in events) < _PROMPT


def test_the_head_of_a_stream_does_not_wait_for_its_end(kind: Kind) -> None:
    with replicas("a") as pool, running(kind, fleet_of(pool)) as gateway:
        stream = gateway.get("/sse?n=2&gap=1")
    assert stream.finished - stream.headers_at > 0.8


def test_silence_beyond_idle_ends_a_stream_with_an_error(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a], route={"timeouts": {"idle": "1s"}})) as gateway:
        stream = gateway.get("/sse?n=2&gap=60")
    assert (stream.status, stream.error, len(stream.events())) == (200, "short", 1)
    assert stream.finished - stream.events()[0].at > 0.8


def test_events_within_idle_keep_a_stream_alive(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a], route={"timeouts": {"idle": "2s"}})) as gateway:
        stream = gateway.get("/sse?n=12&gap=0.25")
    assert stream.ok
    assert len(stream.events()) == 12


def test_silence_beyond_idle_before_the_answer_is_a_504(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a], route={"timeouts": {"idle": "1s"}})) as gateway:
        answer = gateway.post("/sse?n=1&first=60")
        assert a.requests == 1
    assert (answer.status, answer.header("content-type")) == (504, "application/json")
    assert answer.json["error"]["type"] == "timeout"
    assert answer.seconds > 0.8


def test_a_client_that_goes_away_ends_the_stream_at_the_replica(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of([a])) as gateway:
        stream = gateway.send("GET", "/sse?n=600&gap=0.2")
        eventually(lambda: a.in_flight == 1)
        stream.cancel()
        eventually(lambda: a.abandoned == 1 and a.in_flight == 0)

"""A proxy forwards events as they are sent, and ends a stream that is silent for longer than `idle`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.fleet import Gateway, entry, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_GAP = 1.25
"""Seconds between events. A proxy that holds an event until the next one is late by this time."""


@dataclass(frozen=True, slots=True)
class _Site:
    gateway: Gateway
    replica: Replica


@pytest.fixture(scope="module")
def sites() -> Iterator[Mapping[Kind, _Site]]:
    """Run each proxy with the routes `/sse` and, for a silence of at most 2 s, `/2s/sse`."""
    with ExitStack() as stack:
        started: dict[Kind, _Site] = {}
        for kind in KINDS:
            (replica,) = stack.enter_context(replicas("a"))
            routes = {
                "idle": {
                    "match": {"path_prefix": "/2s"},
                    "rewrite": {"path_prefix": "/"},
                    "pool": "pool",
                    "timeouts": {"idle": "2s"},
                }
            }
            gateway = stack.enter_context(running(kind, fleet_of({"replicas": [entry(replica)]}, routes=routes)))
            started[kind] = _Site(gateway, replica)
        yield started


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_events_arrive_as_they_are_sent(sites: Mapping[Kind, _Site], method: str) -> None:
    """The best of three is used, because the machine may be busy: a proxy that buffers events is late every time."""
    body = b'{"stream": true}' if method == "POST" else b""
    sent = []
    for _ in range(3):
        for kind, site in sites.items():
            sent.append((kind, site.gateway.send(method, f"/sse?n=4&gap={_GAP}&first=0.1", body=body)))
        time.sleep(0.2)
    for kind in sites:
        streams = [stream.result(60) for name, stream in sent if name == kind]
        assert all(stream.ok and stream.header("content-type") == "text/event-stream" for stream in streams), kind
        events = [stream.events() for stream in streams]
        assert [len(each) for each in events] == [4] * 3, kind
        for number in range(4):
            assert min(each[number].lag for each in events) < _GAP * 0.8, (kind, number)


def test_head_of_a_stream_arrives_before_its_end(sites: Mapping[Kind, _Site]) -> None:
    sent = {kind: site.gateway.send("GET", "/sse?n=2&gap=5") for kind, site in sites.items()}
    for kind, stream in ((kind, future.result(60)) for kind, future in sent.items()):
        assert stream.finished - stream.headers_at > 1, kind


def test_events_within_idle_keep_a_stream_alive(sites: Mapping[Kind, _Site]) -> None:
    sent = {kind: site.gateway.send("GET", "/2s/sse?n=6&gap=0.5") for kind, site in sites.items()}
    for kind, stream in ((kind, future.result(60)) for kind, future in sent.items()):
        assert (stream.ok, len(stream.events())) == (True, 6), kind


def test_silence_beyond_idle_ends_a_stream_with_an_error(sites: Mapping[Kind, _Site]) -> None:
    sent = {kind: site.gateway.send("GET", "/2s/sse?n=2&gap=60") for kind, site in sites.items()}
    for kind, stream in ((kind, future.result(60)) for kind, future in sent.items()):
        assert (stream.status, stream.error, len(stream.events())) == (200, "short", 1), kind
        assert stream.finished - stream.events()[0].at > 1, kind


def test_silence_beyond_idle_before_the_answer_is_a_504(sites: Mapping[Kind, _Site]) -> None:
    before = {kind: site.replica.requests for kind, site in sites.items()}
    sent = {kind: site.gateway.send("POST", "/2s/sse?n=1&first=60") for kind, site in sites.items()}
    for kind, answer in ((kind, future.result(60)) for kind, future in sent.items()):
        assert (answer.status, answer.header("content-type")) == (504, "application/json"), kind
        assert answer.json["error"]["type"] == "timeout"
        assert answer.seconds > 1
        assert sites[kind].replica.requests == before[kind] + 1, kind


def test_stream_ends_at_the_replica_when_its_client_leaves(sites: Mapping[Kind, _Site]) -> None:
    for replica in (site.replica for site in sites.values()):
        eventually(lambda replica=replica: replica.in_flight == 0)  # type: ignore[misc]
        replica.forget()
    sent = [site.gateway.send("GET", "/sse?n=600&gap=0.2") for site in sites.values()]
    for replica in (site.replica for site in sites.values()):
        eventually(lambda replica=replica: replica.in_flight == 1)  # type: ignore[misc]
    for stream in sent:
        stream.cancel()
    for kind, site in sites.items():
        eventually(lambda site=site: (site.replica.abandoned, site.replica.in_flight) == (1, 0))  # type: ignore[misc]
        assert site.replica.requests == 1, kind

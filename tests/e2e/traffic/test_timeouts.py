"""Timeouts: of connecting, of a whole request, of silence; and none on a long generation."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import entry, fleet_of, pool_of, running
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica, replicas


@contextmanager
def _silent_address() -> Iterator[str]:
    """An address at which connections are neither taken nor refused: its queue is full, the system drops what comes."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        time.sleep(0.1)
        yield f"{HOST}:{listener.getsockname()[1]}"


def _silent(*members: Replica) -> Iterator[Fleet]:
    with _silent_address() as address:
        listed = [{"name": "silent", "address": address}, *map(entry, members)]
        balance = {"algorithm": "round_robin"}
        yield fleet_of({"replicas": listed, "balance": balance, "timeouts": {"connect": "400ms"}})


def test_a_replica_that_takes_no_connection_is_given_up_in_time(kind: Kind) -> None:
    with contextmanager(_silent)() as fleet, running(kind, fleet) as gateway:
        answer = gateway.post(timeout=20)
    assert (answer.status, answer.header("content-type")) == (503, "application/json")
    assert answer.seconds < 8
    assert answer.seconds > 0.3 or kind == "haproxy", "HAProxy's first check may find it out before the request comes"


def test_a_replica_that_takes_no_connection_costs_a_wait_and_no_request(kind: Kind) -> None:
    with replicas("a") as (a,), contextmanager(_silent)(a) as fleet, running(kind, fleet) as gateway:
        answers = [gateway.post(timeout=20) for _ in range(4)]
    assert [answer.replica for answer in answers] == ["a"] * 4
    assert max(answer.seconds for answer in answers) < 8


def test_a_request_beyond_its_time_gets_504_and_no_second_replica(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _timed(pool, request="600ms")) as gateway:
        for replica in pool:
            replica.held = True
        answer = gateway.post()
        time.sleep(0.5)
        reached = [replica.requests for replica in pool]
    assert (answer.status, answer.header("content-type")) == (504, "application/json")
    assert answer.seconds > 0.5
    assert sorted(reached) == [0, 1]


def test_a_stream_beyond_its_time_is_cut_where_the_proxy_can(kind: Kind) -> None:
    """nginx and HAProxy have no limit of a whole request, and say so."""
    with replicas("a") as pool, running(kind, _timed(pool, request="1s")) as gateway:
        stream = gateway.get("/sse?n=8&gap=0.3")
        assert ("LB435" in gateway.messages) == (kind != "envoy")
    assert stream.ok == (kind != "envoy")
    assert 1 <= len(stream.events()) <= (8 if stream.ok else 5)


def test_silence_beyond_idle_ends_a_stream_and_shorter_silence_does_not(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, _timed([a], idle="1s")) as gateway:
        lively = gateway.send("GET", "/sse?n=12&gap=0.2")
        silent = gateway.get("/sse?n=2&gap=60")
        a.held = True
        mute = gateway.post()
        assert lively.result(20).ok
    assert (len(lively.result().events()), len(silent.events())) == (12, 1)
    assert (silent.ok, silent.error) == (False, "short")
    assert (mute.status, mute.header("content-type")) == (504, "application/json")


def _timed(members: list[Replica], **timeouts: str) -> Fleet:
    route: dict[str, Any] = {"timeouts": timeouts}
    return fleet_of(pool_of(members), route=route)


@pytest.mark.parametrize("used", [False, True], ids=["never used", "used once"])
def test_an_idle_connection_of_a_client_is_closed_when_the_fleet_says(kind: Kind, used: bool) -> None:
    """By its own default Envoy waits six seconds more."""
    timeouts = {"request_headers": "1s", "idle": "1s"}
    with (
        replicas("a") as pool,
        running(kind, fleet_of(pool_of(pool), listener={"timeouts": timeouts})) as gateway,
        socket.create_connection((HOST, gateway.port)) as connection,
    ):
        connection.settimeout(20)
        if used:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        while connection.recv(1 << 16):
            pass
        waited = time.monotonic() - began
    assert 0.5 < waited < 4.5

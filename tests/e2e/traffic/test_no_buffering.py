"""A large answer that a replica writes slowly is passed on as it comes, and a slow reader holds its replica back."""

from __future__ import annotations

import socket
import statistics
import time

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_PIECE = 200_000


def test_slow_large_answer_is_passed_on_immediately(kind: Kind) -> None:
    with replicas("a") as pool, running(kind, fleet_of(pool)) as gateway:
        answer = gateway.get(f"/sse?n=12&gap=0.15&pad={_PIECE}")
    events = answer.events()
    assert (answer.ok, len(events)) == (True, 12)
    assert len(answer.body) > 12 * _PIECE
    assert statistics.median(event.lag for event in events) < 0.4
    assert max(event.lag for event in events) < 1.5


def test_slow_reader_does_not_fill_the_proxy(kind: Kind) -> None:
    """The replica has not written 40 MB to a client that reads nothing."""
    pieces = 200
    with (
        replicas("a") as (a,),
        running(kind, fleet_of([a])) as gateway,
        socket.create_connection((HOST, gateway.port)) as client,
    ):
        client.sendall(f"GET /sse?n={pieces}&pad={_PIECE} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        eventually(lambda: a.in_flight == 1)
        time.sleep(1.5)
        assert a.in_flight == 1
        assert gateway.get().ok

"""A proxy forwards a slow large response as it arrives, and does not buffer it for a slow reader."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.fleet import Gateway, fleet_of, running
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_PIECE = 200_000


@pytest.fixture(scope="module")
def sites() -> Iterator[Mapping[Kind, tuple[Gateway, Replica]]]:
    """Run each proxy with its own replica. The tests mostly wait, for all proxies at the same time."""
    with ExitStack() as stack:
        started = {}
        for kind in KINDS:
            (replica,) = stack.enter_context(replicas("a"))
            started[kind] = (stack.enter_context(running(kind, fleet_of([replica]))), replica)
        yield started


def test_slow_large_answer_is_passed_on_immediately(sites: Mapping[Kind, tuple[Gateway, Replica]]) -> None:
    """A proxy that buffers the response is late every time; a busy machine is not."""

    def late() -> set[Kind]:
        sent = {kind: gateway.send("GET", f"/sse?n=12&gap=0.4&pad={_PIECE}") for kind, (gateway, _) in sites.items()}
        lags: dict[Kind, list[float]] = {}
        for kind, answer in ((kind, future.result(60)) for kind, future in sent.items()):
            assert (answer.ok, len(answer.events())) == (True, 12), kind
            assert len(answer.body) > 12 * _PIECE, kind
            lags[kind] = [event.lag for event in answer.events()]
        return {kind for kind, each in lags.items() if statistics.median(each) >= 1.2 or max(each) >= 3}

    eventually(lambda: late() == set())


def test_slow_reader_does_not_fill_the_proxy(sites: Mapping[Kind, tuple[Gateway, Replica]]) -> None:
    """The replica cannot write 200 MB to a client that reads nothing; the buffers of the kernel can hold 40 MB."""
    with ExitStack() as stack:
        for gateway, replica in sites.values():
            client = stack.enter_context(socket.create_connection((HOST, gateway.port)))
            client.sendall(f"GET /sse?n=1000&pad={_PIECE} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            eventually(lambda replica=replica: replica.in_flight == 1)  # type: ignore[misc]
        time.sleep(1.5)
        for kind, (gateway, replica) in sites.items():
            assert replica.in_flight == 1, kind
            assert gateway.get().ok, kind

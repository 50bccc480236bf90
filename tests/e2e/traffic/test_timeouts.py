"""Timeouts of connecting, of a whole request, and of idle client connections.

Each test runs its requests on all proxies at the same time, because it mostly waits. For `idle` see test_sse.py.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.fleet import Gateway, bind, fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica, replicas


@contextmanager
def _silent_address() -> Iterator[str]:
    """Yield an address that neither accepts nor refuses connections: its queue is full, so the system drops them."""
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


@dataclass(frozen=True, slots=True)
class _Site:
    gateway: Gateway
    members: list[Replica]


@pytest.fixture(scope="module")
def sites() -> Iterator[Mapping[Kind, _Site]]:
    """Run each proxy with two replicas and one unresponsive replica, a route for each test, and the listener
    `impatient`."""
    with ExitStack() as stack:
        silent = {"name": "silent", "address": stack.enter_context(_silent_address())}
        started: dict[Kind, _Site] = {}
        for kind in KINDS:
            *members, stuck = stack.enter_context(replicas("a", "b", "stuck"))
            stuck.held = True
            connecting = {"balance": {"algorithm": "round_robin"}, "timeouts": {"connect": "400ms"}}
            pools = {
                "silent": {"replicas": [silent], **connecting},
                "mixed": {**pool_of(members[:1], **connecting)},
            }
            pools["mixed"]["replicas"].insert(0, silent)
            pools["stuck"] = pool_of([stuck])
            pools["again"] = pool_of([stuck, members[0]], balance={"algorithm": "round_robin"})
            routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
            routes["stuck"]["timeouts"] = routes["again"]["timeouts"] = {"attempt": "1s"}
            routes["again"]["retry"] = {"idempotent": True}
            routes["limited"] = {
                "match": {"path_prefix": "/limited"},
                "pool": "pool",
                "rewrite": {"path_prefix": "/"},
                "timeouts": {"request": "1s"},
            }
            impatient = {"bind": bind(), "timeouts": {"request_headers": "1s", "idle": "1s"}}
            fleet = fleet_of(members, pools=pools, routes=routes, listeners={"impatient": impatient})
            started[kind] = _Site(stack.enter_context(running(kind, fleet)), members)
        yield started


def test_silent_replica_is_given_up_in_time(sites: Mapping[Kind, _Site]) -> None:
    sent = {kind: site.gateway.send("POST", "/silent", timeout=20) for kind, site in sites.items()}
    for kind, answer in ((kind, future.result(60)) for kind, future in sent.items()):
        assert (answer.status, answer.header("content-type")) == (503, "application/json"), kind
        assert answer.seconds < 8, kind
        assert answer.seconds > 0.3 or kind == "haproxy", "HAProxy's first check may detect it before the request"


def test_silent_replica_costs_a_wait_and_no_request(sites: Mapping[Kind, _Site]) -> None:
    request = Request("POST", "/mixed", timeout=20)
    loads = {kind: site.gateway.send_load(4, 1, request) for kind, site in sites.items()}
    for kind, answers in ((kind, load.result(60).responses) for kind, load in loads.items()):
        assert [answer.replica for answer in answers] == ["a"] * 4, kind
        assert max(answer.seconds for answer in answers) < 8, kind


def test_request_beyond_its_time_gets_504_and_no_retry(sites: Mapping[Kind, _Site]) -> None:
    members = [replica for site in sites.values() for replica in site.members]
    for replica in members:
        replica.forget()
        replica.held = True
    try:
        sent = {kind: site.gateway.send("POST", "/limited") for kind, site in sites.items()}
        answers = {kind: future.result(60) for kind, future in sent.items()}
        time.sleep(0.5)
        for kind, answer in answers.items():
            assert (answer.status, answer.header("content-type")) == (504, "application/json"), kind
            assert answer.seconds > 0.8, kind
            assert sorted(replica.requests for replica in sites[kind].members) == [0, 1], kind
    finally:
        for replica in members:
            replica.held = False


def test_try_without_an_answer_ends_in_time(sites: Mapping[Kind, _Site]) -> None:
    """Another replica is tried only if that is harmless."""
    paths = ["/stuck", *["/again"] * 4]
    sent = [(kind, path, site.gateway.send("POST", path)) for kind, site in sites.items() for path in paths]
    for kind, path, answer in ((kind, path, future.result(60)) for kind, path, future in sent):
        expected = (504, None) if path == "/stuck" else (200, "a")
        assert (answer.status, answer.replica) == expected, (kind, path)
        assert answer.seconds < 8, (kind, path)


def test_stream_beyond_its_time_is_cut_by_envoy(sites: Mapping[Kind, _Site]) -> None:
    """nginx and HAProxy cannot limit a whole request, and lbctl reports it."""
    sent = {kind: site.gateway.send("GET", "/limited/sse?n=8&gap=0.3") for kind, site in sites.items()}
    for kind, stream in ((kind, future.result(60)) for kind, future in sent.items()):
        assert ("LB435" in sites[kind].gateway.messages) == (kind != "envoy")
        assert stream.ok == (kind != "envoy"), kind
        assert 1 <= len(stream.events()) <= (8 if stream.ok else 5), kind


def test_idle_client_connections_are_closed_in_time(sites: Mapping[Kind, _Site]) -> None:
    """Connections that were never used, and used once. By default Envoy waits six seconds longer.

    A proxy starts its timer at some moment between the beginning and the end of the client's action.
    """
    cases = [(kind, used) for kind in sites for used in (False, True)]

    def seconds_until_close(kind: Kind, used: bool) -> tuple[float, float]:
        first = time.monotonic()
        with socket.create_connection((HOST, sites[kind].gateway.ports["impatient"])) as connection:
            connection.settimeout(20)
            if used:
                connection.sendall(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n")
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            last = time.monotonic()
            while connection.recv(1 << 16):
                pass
            closed = time.monotonic()
            return closed - first, closed - last

    with ThreadPoolExecutor(len(cases)) as threads:
        waits = dict(zip(cases, threads.map(lambda case: seconds_until_close(*case), cases), strict=True))
    assert {case: waited for case, waited in waits.items() if waited[0] <= 0.5 or waited[1] >= 6} == {}

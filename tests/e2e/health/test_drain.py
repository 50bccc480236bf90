"""A drained replica finishes its requests and gets no new ones."""

from __future__ import annotations

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually


def test_drained_replica_gets_no_requests(kind: Kind) -> None:
    with replicas("a", "b", "c") as (a, b, c), running(kind, fleet_of(_pool(a, b, c, drained="b"))) as gateway:
        load = gateway.load(60, concurrency=6)
    load.assert_no_failure()
    assert (set(load.by_replica), b.requests) == ({"a", "c"}, 0)


def test_fully_drained_pool_answers_503(kind: Kind) -> None:
    with replicas("a") as (a,), running(kind, fleet_of(_pool(a, drained="a"))) as gateway:
        answer = gateway.post()
    assert (answer.status, answer.header("content-type"), a.requests) == (503, "application/json", 0)
    assert answer.json["error"] == {
        "message": "no replica available",
        "type": "unavailable",
        "param": None,
        "code": "unavailable",
    }


def test_drain_finishes_running_requests(kind: Kind) -> None:
    """Streams and slow requests run on the replica while it is drained; further requests arrive on kept connections.

    With nginx the client keeps no connections, because a reload closes idle ones while a request may be in transit.
    """
    with replicas("a", "b") as (a, b), running(kind, fleet := fleet_of(_pool(a, b))) as gateway:
        for replica in (a, b):
            replica.behave(delay=1.0)
            replica.held = True
        streams = [gateway.send("GET", "/sse?n=4&gap=0.4") for _ in range(8)]
        slow = [gateway.send("POST", "/slow", body=b"{}") for _ in range(8)]
        _await_requests_at_both(a, b)
        for replica in (a, b):
            replica.behave(delay=0)
            replica.held = False
        load = gateway.send_load(140, concurrency=4, gap=0.04, keep_alive=kind != "nginx")
        gateway.reload({**fleet, "pools": {"pool": _pool(a, b, drained="b")}})
        served = at_rest(lambda: b.requests)
        after = gateway.load(60, concurrency=4)
        load.result(20).assert_no_failure()
        assert [len(stream.result(20).events()) for stream in streams] == [4] * 8
        assert all(request.result(20).ok for request in slow)
    assert {stream.result().replica for stream in streams} == {"a", "b"}
    assert after.by_replica == {"a": 60}
    assert b.requests == served


def _pool(*members: Replica, drained: str = "") -> dict[str, object]:
    listed = [entry(replica, **({"drain": True} if replica.name == drained else {})) for replica in members]
    return {"replicas": listed, "balance": {"algorithm": "round_robin"}}


def _await_requests_at_both(a: Replica, b: Replica) -> None:
    eventually(lambda: a.in_flight + b.in_flight == 16)
    assert min(a.in_flight, b.in_flight) > 0

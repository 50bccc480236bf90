"""SIGKILL of `lbctl serve` during a drain and before the drain expires, under traffic on all proxies.

Streams complete, the drain holds, and each of its records is written once.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import at_rest, eventually

_NAMES = ("edge", "ha", "ng")
_TTL = 8
"""Seconds, in which a busy machine can kill `serve`."""
_STREAM = "/sse?n=60&gap=0.05"
_REQUEST = Request("POST", "/v1/completions", timeout=20.0)


def _fleet(a: Replica, b: Replica, *sites: edges.Edge) -> Fleet:
    fleet = fleet_of(pool_of([a, b], balance={"algorithm": "round_robin"}), **driven("edge"))
    del fleet["listeners"]["gateway"]
    return edges.add(fleet, *sites)


def _in_sync(control: ControlPlane) -> None:
    version = control.status["snapshot"]["version"]
    eventually(lambda: all(control.proxies.get(name, {}).get("last_good") == version for name in _NAMES))


def _drain(control: ControlPlane, *options: str) -> None:
    token = ["--server", control.url, "--token-file", str(control.state / "api-token")]
    assert run(["drain", "pool/a", *options, *token]) == 0


def _records(control: ControlPlane) -> list[tuple[str, str, str]]:
    """Return actor, action and reason of the records about the drained replica."""
    records = control.get("audit")["records"]
    return [(item["actor"], item["action"], item["reason"]) for item in records if item["subject"] == "pool/a"]


def test_drain_survives_kills_and_expires_once() -> None:
    with ExitStack() as stack:
        a, b = stack.enter_context(replicas("a", "b"))
        ha, ng = stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())
        fleet = _fleet(a, b, ha, ng)
        for site in (ha, ng):
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        clients = [stack.enter_context(control.envoy("edge", ["edge"])).client(), ha, ng]
        _in_sync(control)
        a.paused = b.paused = True
        streams = [[client.send("GET", _STREAM, timeout=150.0) for _ in range(4)] for client in clients]
        eventually(lambda: a.in_flight + b.in_flight == 12)
        loads = [stack.enter_context(client.steady(15, _REQUEST)) for client in clients]

        _drain(control, "--reason", "a fan")
        control.kill()
        assert a.in_flight >= len(clients)
        control.start()
        _in_sync(control)
        count = at_rest(lambda: a.requests)
        began = time.monotonic()
        a.paused = b.paused = False
        answers = [stream.result(60) for group in streams for stream in group]
        assert [answer.error for answer in answers if not answer.ok] == []
        assert all({"a"} <= {stream.result(0).replica for stream in group} for group in streams)
        assert [set(load.since(began).by_replica) for load in loads] == [{"b"}] * len(loads)
        assert a.requests == count
        assert _records(control) == [("operator", "drain", "a fan")]

        _drain(control, "--ttl", f"{_TTL}s")
        over = time.monotonic() + _TTL
        control.kill()
        assert "override ended" not in control.log
        time.sleep(max(0.0, over - time.monotonic()))
        control.start()
        eventually(lambda: len(_records(control)) > 2)
        _in_sync(control)
        ended = time.monotonic()
        for load in loads:
            eventually(lambda load=load: "a" in load.since(ended).by_replica)
        control.kill()
        control.start()
        assert control.status["overrides"] == []
        assert _records(control)[1:] == [("operator", "drain", ""), ("lbctl", "end drain", "expired")]
        assert control.log.count("override ended: expired") == 1
        for load in loads:
            load.load.assert_no_failure()

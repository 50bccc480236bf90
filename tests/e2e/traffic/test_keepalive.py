"""A server that closes idle connections costs no request where `connections.idle` is shorter than its own time."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.processes.binaries import KINDS
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import replicas


def test_posts_about_as_far_apart_as_the_servers_keep_alive_all_arrive() -> None:
    """300 POSTs on 50 connections, about 1.5 s apart on each, to servers that close after as long; side by side."""
    with ExitStack() as stack:
        loads = {}
        for kind in KINDS:
            pool = stack.enter_context(replicas("a", "b", keep_alive=1.5))
            gateway = stack.enter_context(running(kind, fleet_of(pool_of(pool, connections={"idle": "800ms"}))))
            request = Request("POST", "/v1/chat", body=b'{"stream": false}')
            loads[kind] = gateway.send_load(300, 50, request, gap=1.5, jitter=0.2)
        ended = {kind: load.result(60) for kind, load in loads.items()}
    assert {kind: list(map(str, load.failures[:5])) for kind, load in ended.items() if load.failures} == {}
    assert {kind: load.connections for kind, load in ended.items()} == dict.fromkeys(KINDS, 50)


def test_each_client_connection_serves_its_posts_alone() -> None:
    """One connection at a time, so that no other request refreshes the one to the server; around both times."""
    with ExitStack() as stack:
        loads = []
        for kind in KINDS:
            pool = stack.enter_context(replicas("a", keep_alive=1.5))
            gateway = stack.enter_context(running(kind, fleet_of(pool_of(pool, connections={"idle": "800ms"}))))
            loads += [
                (kind, gap, gateway.send_load(8, 1, Request("POST", "/", body=b"{}"), gap=gap, jitter=0.0))
                for gap in (0.79, 0.81, 1.49, 1.5, 1.51)
            ]
        failed = {(kind, gap): load.result(60).failures for kind, gap, load in loads}
    assert {case: list(map(str, failures)) for case, failures in failed.items() if failures} == {}

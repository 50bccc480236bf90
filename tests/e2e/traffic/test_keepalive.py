"""A server that closes idle connections costs no request if `connections.idle` is shorter than its own timeout."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from tests.support.processes.binaries import KINDS
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import replicas

_POST = Request("POST", body=b'{"stream": false}')
_GAPS = (0.79, 0.81, 1.49, 1.5, 1.51)
"""Seconds between requests of one client: around both timeouts."""


def test_idle_connections_to_servers_cost_no_request() -> None:
    """Many clients of one pool send requests at random intervals close to the server's keep-alive timeout.

    In addition, a single client uses each gap, so that no other request uses its connection to the server.
    """
    with ExitStack() as stack:
        loads = {}
        for kind in KINDS:
            names = ["shared", *(f"gap-{gap}" for gap in _GAPS)]
            pools = {
                name: pool_of(stack.enter_context(replicas("a", "b", keep_alive=1.5)), connections={"idle": "800ms"})
                for name in names
            }
            for name in names[1:]:
                del pools[name]["replicas"][1:]
            routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in names}
            gateway = stack.enter_context(running(kind, {**fleet_of([]), "routes": routes, "pools": pools}))
            loads[kind, "shared"] = gateway.send_load(200, 50, replace(_POST, path="/shared"), gap=1.5, jitter=0.2)
            for gap in _GAPS:
                request = replace(_POST, path=f"/gap-{gap}")
                loads[kind, f"gap-{gap}"] = gateway.send_load(6, 1, request, gap=gap, jitter=0.0)
        ended = {case: load.result(60) for case, load in loads.items()}
    assert {case: list(map(str, load.failures[:5])) for case, load in ended.items() if load.failures} == {}
    assert {kind: ended[kind, "shared"].connections for kind in KINDS} == dict.fromkeys(KINDS, 50)

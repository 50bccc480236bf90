"""Replicas that accept connections but never answer are detected by the requests that the proxies report."""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import Thread

import pytest

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
_KINDS = ("envoy", "haproxy", "nginx")


def _states(control: ControlPlane) -> dict[str, tuple[str, str]]:
    pools = control.get("pools")["pools"]
    return {pool["name"]: (pool["replicas"][0]["state"], pool["replicas"][0]["state_reason"]) for pool in pools}


def test_replica_that_answers_nothing_is_unknown() -> None:
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        wedged, streaming = stack.enter_context(replicas("wedged", "streaming"))
        haproxy, nginx = stack.enter_context(edges.haproxy("haproxy")), stack.enter_context(edges.nginx("nginx"))
        routes = {
            f"{name}-{kind}": {
                "match": {"path": path},
                "listeners": [kind],
                "pool": f"{name}-{kind}",
                "timeouts": {"idle": "5s"},
            }
            for kind in _KINDS
            for name, path in (("wedged", "/x"), ("streaming", "/sse"))
        }
        members = {"wedged": wedged, "streaming": streaming}
        pools = {name: {**pool_of([members[name.split("-")[0]]])} for name in routes}
        fleet: Fleet = edges.add({"version": 1, **driven("envoy"), "routes": routes, "pools": pools}, haproxy, nginx)
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("envoy", ["envoy"], by_socket=True))
        clients = {"envoy": envoy.client(), "haproxy": haproxy, "nginx": nginx}
        eventually(lambda: {state for state, _ in _states(control).values()} == {"in"}, 30)
        eventually(lambda: all(client.get("/x").status == 200 for client in clients.values()), 30)
        wedged.held = True
        streams = [
            Thread(target=client.get, args=("/sse?n=60&gap=1",), kwargs={"timeout": 90}) for client in clients.values()
        ]
        for stream in streams:
            stream.start()
        for client in clients.values():
            stack.enter_context(client.steady(2, lambda _: Request("GET", "/x", timeout=1.0), keep_alive=False))
        began = time.monotonic()
        eventually(lambda: all(_states(control)[f"wedged-{kind}"][0] == "unknown" for kind in _KINDS), 70)
        assert time.monotonic() - began > 25
        reason = "requests are being sent to it, but for more than 30 s none has succeeded"
        assert {_states(control)[f"wedged-{kind}"][1] for kind in _KINDS} == {reason}
        assert {_states(control)[f"streaming-{kind}"][0] for kind in _KINDS} == {"in"}
        wedged.held = False
        eventually(lambda: all(_states(control)[f"wedged-{kind}"][0] == "in" for kind in _KINDS), 60)
        for stream in streams:
            stream.join()

"""Requests that a proxy itself rejects are a problem in `status`: load shedding, and a full pool."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_CHECK = {"http": {"path": "/health"}, "interval": "1s", "unhealthy_threshold": 2}
_SHEDDING = {"health": {"active": _CHECK, "load_shedding": {"min_healthy": "50%"}}}


def _problems(control: ControlPlane) -> list[tuple[str, str, str]]:
    return [(item["severity"], item["kind"], item["subject"]) for item in control.status["problems"]]


def _kinds(control: ControlPlane) -> set[tuple[str, str]]:
    return {(kind, subject) for _, kind, subject in _problems(control)}


@pytest.mark.nightly
def test_refused_requests_are_a_problem_in_status() -> None:
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        a, b, c, full = stack.enter_context(replicas("a", "b", "c", "full"))
        edge = stack.enter_context(edges.haproxy("haproxy"))
        routes: dict[str, Any] = {
            name: {"match": {"path_prefix": f"/{name}/"}, "listeners": ["haproxy"], "pool": name}
            for name in ("sheds", "full")
        }
        limits = {"max_requests": 1, "max_pending_requests": 1}
        pools = {"sheds": pool_of([a, b, c], **_SHEDDING), "full": pool_of([full], circuit_breaker=limits)}
        fleet: Fleet = edges.add({"version": 1, "routes": routes, "pools": pools}, edge)
        stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        eventually(lambda: _problems(control) == [])
        b.refuse()
        c.refuse()
        eventually(lambda: _problems(control)[:1] == [("critical", "pool_shedding", "sheds")])
        eventually(lambda: edge.post("/sheds/x").status == 503)
        full.behave(delay=8.0)
        with edge.steady(20, lambda _: Request("POST", "/full/x", timeout=20.0), keep_alive=False):
            eventually(lambda: {("pool_errors", "full"), ("pool_failing", "full")}.intersection(_kinds(control)), 40)

"""Deep health of an engine without load metrics: the proxies' own counters show that requests wait there."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from tests.support.processes import edges
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import bootstrap_of_command
from tests.support.processes.engines import engines
from tests.support.processes.fleet import fleet_of, pool_of, side_by_side
from tests.support.processes.http1 import Request
from tests.support.processes.waiting import at_rest, eventually

_PROGRESS = {
    "kind": "custom",
    "url": "http://{address}/metrics",
    "metric": "vllm:iteration_tokens_total_count",
    "signal": "progress",
    "unit": "count",
}
_TELEMETRY: dict[str, Any] = {"interval": "500ms", "sources": [_PROGRESS]}


def _version(control: ControlPlane, *proxies: str) -> str | None:
    """Return the published version; None unless all of these proxies have it."""
    version: str = control.status["snapshot"]["version"]
    return version if all(control.proxies[name]["last_good"] == version for name in proxies) else None


def test_wedged_engine_is_out_by_the_counts_of_its_proxy() -> None:
    """HAProxy and Envoy each have a pool."""
    with engines("a", "b", "c", "d") as members, edges.haproxy("ha") as haproxy, ExitStack() as stack:
        health = {"deep": {"stalled_after": "2s"}}
        pools = {"ha": members[:2], "edge": members[2:]}
        fleet = side_by_side(
            {name: fleet_of(pool_of(pool, telemetry=_TELEMETRY, health=health)) for name, pool in pools.items()}
        )
        fleet |= {section: {**driven("edge")[section], **haproxy.sections[section]} for section in haproxy.sections}
        stack.enter_context(edges.started_edge(haproxy, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("edge", ["edge"], bootstrap=bootstrap_of_command(control, "edge")))
        eventually(lambda: control.metric("lbctl_sample_to_decision_seconds_count") > 0)
        time.sleep(3)
        assert "a replica is out" not in control.log, "an idle engine makes no progress either"
        request = Request("POST", "/v1/completions?n=10", timeout=20.0)
        with haproxy.steady(20, request) as first, envoy.client().steady(20, request) as second:
            time.sleep(1)
            before, wedged = control.status["snapshot"]["version"], [members[0], members[2]]
            for engine in wedged:
                engine.wedged = True
            eventually(lambda: control.log.count("a replica is out") == len(wedged))
            eventually(lambda: _version(control, *pools) not in (None, before))
            counts = [at_rest(lambda engine=engine: engine.requests) for engine in wedged]
            time.sleep(1)
            assert [engine.requests for engine in wedged] == counts
            assert all(f"replica={engine.name}" in control.log for engine in wedged)
            for engine in wedged:
                engine.wedged = False
        first.load.assert_no_failure()
        second.load.assert_no_failure()

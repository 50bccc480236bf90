"""A wedged engine that says nothing of its load: HAProxy's own count tells that requests wait there."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.support import edges
from tests.e2e.support.control import controlling
from tests.e2e.support.engines import Engine, engines
from tests.e2e.support.fleet import Fleet, fleet_of, pool_of
from tests.e2e.support.http1 import Request
from tests.e2e.support.waiting import at_rest, eventually

_PROGRESS = {
    "kind": "custom",
    "url": "http://{address}/metrics",
    "metric": "vllm:iteration_tokens_total_count",
    "signal": "progress",
    "unit": "count",
}
_TELEMETRY: dict[str, Any] = {"interval": "500ms", "timeout": "400ms", "stale_after": "2s", "sources": [_PROGRESS]}


def _fleet(members: list[Engine], site: edges.Edge) -> Fleet:
    fleet = fleet_of(pool_of(members, telemetry=_TELEMETRY, health={"deep": {"stalled_after": "2s"}}))
    del fleet["listeners"]["gateway"]
    return {**fleet, **site.sections}


def test_it_is_out_by_haproxys_count_of_what_it_holds() -> None:
    with engines("a", "b") as members, edges.haproxy() as ha:
        fleet = _fleet(members, ha)
        with edges.started_edge(ha, fleet), controlling(fleet) as control:
            eventually(lambda: control.metric("lbctl_sample_to_decision_seconds_count") > 0)
            time.sleep(4)
            assert "a replica is out" not in control.log, "an idle engine stands still, too"
            with ha.steady(20, Request("POST", "/v1/completions?n=10", timeout=20.0)) as load:
                time.sleep(1)
                members[0].wedged = True
                wedged = time.monotonic()
                eventually(lambda: "a replica is out" in control.log)
                assert time.monotonic() - wedged < 10
                eventually(lambda: control.proxies["ha"]["last_good"] == control.status["snapshot"]["version"])
                held = at_rest(lambda: members[0].requests)
                time.sleep(1)
                assert members[0].requests == held
                assert "replica=a" in control.log
                members[0].wedged = False
            load.load.assert_no_failure()

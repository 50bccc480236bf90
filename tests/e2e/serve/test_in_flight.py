"""A wedged engine that says nothing of its load: the proxies' own counts tell that requests wait there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.driving import bootstrap_of_command
from tests.support.processes.engines import Engine, engines
from tests.support.processes.fleet import fleet_of, pool_of
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
_Site = Callable[[list[Engine]], AbstractContextManager[tuple[ControlPlane, Client]]]


def _fleet(members: list[Engine], sections: Fleet) -> Fleet:
    fleet = fleet_of(pool_of(members, telemetry=_TELEMETRY, health={"deep": {"stalled_after": "2s"}}))
    del fleet["listeners"]["gateway"]
    return {**fleet, **sections}


@contextmanager
def _haproxy(members: list[Engine]) -> Iterator[tuple[ControlPlane, Client]]:
    with edges.haproxy("edge") as edge:
        fleet = _fleet(members, edge.sections)
        with edges.started_edge(edge, fleet), controlling(fleet) as control:
            yield control, edge


@contextmanager
def _envoy(members: list[Engine]) -> Iterator[tuple[ControlPlane, Client]]:
    with (
        controlling(_fleet(members, driven("edge"))) as control,
        control.envoy("edge", ["edge"], bootstrap=bootstrap_of_command(control, "edge")) as envoy,
    ):
        yield control, envoy.client()


@pytest.mark.parametrize("site", [_haproxy, _envoy], ids=["haproxy", "envoy"])
def test_it_is_out_by_the_proxys_count_of_what_it_holds(site: _Site) -> None:
    with engines("a", "b") as members, site(members) as (control, client):
        eventually(lambda: control.metric("lbctl_sample_to_decision_seconds_count") > 0)
        time.sleep(4)
        assert "a replica is out" not in control.log, "an idle engine stands still, too"
        with client.steady(20, Request("POST", "/v1/completions?n=10", timeout=20.0)) as load:
            time.sleep(1)
            members[0].wedged = True
            eventually(lambda: "a replica is out" in control.log)
            eventually(lambda: control.proxies["edge"]["last_good"] == control.status["snapshot"]["version"])
            held = at_rest(lambda: members[0].requests)
            time.sleep(1)
            assert members[0].requests == held
            assert "replica=a" in control.log
            members[0].wedged = False
        load.load.assert_no_failure()

"""Rollouts by analysis on Envoy, HAProxy and nginx, with the proxies' own counts of real traffic.

One control plane with one proxy of each kind serves all rollouts of this module, each with its own route and pools. A
rollout without traffic waits, so it begins with the traffic of its test.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Client, Steady
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.exporters import Gauge
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.polling import POLLED_EACH_SECOND
from tests.support.processes.prometheus import prometheus
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_LONG = 120.0
"""Maximum seconds of a rollout with a few intervals, even on a busy machine."""
_KINDS = ("envoy", "haproxy", "nginx")
_ROUTES = ("good", "bad", *(f"slow-{kind}" for kind in _KINDS))
_PASSIVE = {"consecutive_5xx": 1000, "consecutive_connect_failures": 1000, "error_rate": {"min_requests": 100000}}
"""No proxy ejects the replica with errors, so that all of its errors are counted."""


@dataclass(frozen=True)
class Site:
    """The control plane, a client of each proxy, and the replicas by name."""

    control: ControlPlane
    clients: Mapping[str, Client]
    replicas: Mapping[str, Replica]

    @contextmanager
    def traffic(self, route: str, *kinds: str, rate: float = 10.0) -> Iterator[list[Steady]]:
        """Send requests of this route through these proxies."""
        request = Request("POST", f"/{route}/v1/completions", timeout=20.0)
        with ExitStack() as stack:
            steady = (self.clients[kind].steady(rate, lambda _: request, keep_alive=False) for kind in kinds)
            yield [stack.enter_context(each) for each in steady]


def _route(name: str, hold: str = "3s", **analysis: Any) -> dict[str, Any]:
    """Return a route with a rollout from the pool NAME-old to NAME-new."""
    criteria = {"interval": "2s", "min_requests": 12, "max_error_rate": "2%", "failures": 2, **analysis}
    steps = [{"percent": "40%", "hold": hold}, {"percent": "60%", "hold": hold}, {"percent": "100%"}]
    return {
        "match": {"path_prefix": f"/{name}/"},
        "split": {f"{name}-old": 100, f"{name}-new": 0},
        "sticky_split": {"cookie": "variant"},
        "rollout": {"to": f"{name}-new", "mode": "analysis", "steps": steps, "analysis": criteria},
    }


def _pools(members: Mapping[str, Replica]) -> dict[str, Any]:
    """Return a pool of each replica, with the replica's name."""
    return {
        name: pool_of(
            [replica], model={"name": "m", "version": name}, health={"passive": _PASSIVE}, **POLLED_EACH_SECOND
        )
        for name, replica in members.items()
    }


@contextmanager
def _variants(*routes: str) -> Iterator[dict[str, Replica]]:
    with replicas(*(f"{route}-{variant}" for route in routes for variant in ("old", "new"))) as members:
        yield {member.name: member for member in members}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        members = stack.enter_context(_variants(*_ROUTES))
        haproxy, nginx = stack.enter_context(edges.haproxy("haproxy")), stack.enter_context(edges.nginx("nginx"))
        slow = {name: _route(name, max_latency={"percentile": "p90"}) for name in _ROUTES if name.startswith("slow-")}
        good = _route("good", max_latency={"percentile": "p90", "ratio": 3})
        routes = {"good": good, "bad": _route("bad", interval="4s"), **slow}
        fleet: Fleet = {"version": 1, **driven("envoy"), "routes": routes, "pools": _pools(members)}
        edges.add(fleet, haproxy, nginx)
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("envoy", ["envoy"], by_socket=True))
        for route in _ROUTES:
            _in_phase(control, route, "progressing")
        _in_sync(control)
        yield Site(control, {"envoy": envoy.client(), "haproxy": haproxy, "nginx": nginx}, members)


@contextmanager
def _one_envoy(name: str, **analysis: Any) -> Iterator[tuple[ControlPlane, Client, dict[str, Replica]]]:
    """Run a control plane with one Envoy and one rollout."""
    with _variants(name) as members:
        routes = {name: _route(name, **analysis)}
        fleet: Fleet = {"version": 1, **driven("envoy"), "routes": routes, "pools": _pools(members)}
        with controlling(fleet) as control, control.envoy("envoy", ["envoy"], by_socket=True) as envoy:
            yield control, envoy.client(), members


def _in_sync(control: ControlPlane) -> None:
    """Wait until all proxies have the currently published fleet."""

    def all_have_it() -> bool:
        version, rows = control.status["snapshot"]["version"], control.proxies
        return all(rows[kind].get("last_good") == version for kind in _KINDS)

    eventually(all_have_it, _LONG)


def _rollout(control: ControlPlane, route: str) -> dict[str, Any]:
    """Return the rollout of the route, when the control plane has it: shortly after it is ready."""
    rows: dict[str, dict[str, Any]] = {}

    def has_row() -> bool:
        rows.update({row["route"]: row for row in control.get("rollouts")["rollouts"]})
        return route in rows

    eventually(has_row)
    return rows[route]


def _evaluations(control: ControlPlane, route: str) -> list[dict[str, Any]]:
    return list(_rollout(control, route)["analysis"]["evaluations"])


def _steps(control: ControlPlane, route: str) -> list[tuple[str, str]]:
    """Return the actions and reasons of the rollout in the audit log."""
    records = [item for item in control.get("audit")["records"] if item["subject"] == route]
    return [(item["action"], item["reason"]) for item in records if item["action"].startswith("rollout")]


def _counting(control: ControlPlane, pool: str) -> set[str]:
    """Return the proxies that have counted requests of the pool."""
    names = [name for name, value in control.metrics().items() if name.startswith("lbctl_replica_requests") and value]
    return {kind for kind in _KINDS for name in names if f'proxy="{kind}"' in name and f'pool="{pool}"' in name}


def _in_phase(control: ControlPlane, route: str, phase: str) -> None:
    eventually(lambda: _rollout(control, route)["phase"] == phase, _LONG)


def _only(control: ControlPlane, loads: list[Steady], pool: str) -> None:
    """Wait until all proxies send all requests to the pool, and check that this does not change."""
    _in_sync(control)
    eventually(lambda: all(set(load.since(time.monotonic()).by_replica) == {pool} for load in loads))
    began = time.monotonic()
    time.sleep(1)
    assert [set(load.since(began).by_replica) for load in loads] == [{pool}] * len(loads)


def test_good_variant_is_promoted_despite_a_killed_serve(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    control = site.control
    for variant in ("old", "new"):
        site.replicas[f"good-{variant}"].behave(delay=0.05)
    with site.traffic("good", *_KINDS) as loads:
        eventually(lambda: any(item["verdict"] == "good" for item in _evaluations(control, "good")), _LONG)
        before = _evaluations(control, "good")
        control.kill()
        control.start()
        assert _evaluations(control, "good")[: len(before)] == before
        _in_phase(control, "good", "promoted")
        steps = _steps(control, "good")
        assert [action for action, _ in steps] == [
            "rollout progressing (step 1, 40 %)", "rollout progressing (step 2, 60 %)",
            "rollout promoted (step 3, 100 %)",
        ], "each step is done once"  # fmt: skip
        assert all(reason.startswith("good: new 0 errors in ") for _, reason in steps[1:])
        assert run(["rollout", "status", "--server", control.url]) == 0
        status = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["good"]]
        assert any("promoted" in line for line in status)
        assert any("good" in line.split()[1:] for line in status)
        good = ("lbctl_rollout_verdict_total", 'route="good"', 'verdict="good"')
        assert sum(count for name, count in control.metrics().items() if all(part in name for part in good)) >= 2
        eventually(lambda: _counting(control, "good-new") == set(_KINDS))
        _only(control, loads, "good-new")
    for load in loads:
        load.load.assert_no_failure()


def test_variant_with_errors_is_rolled_back_on_all_proxies(site: Site) -> None:
    control = site.control
    site.replicas["bad-new"].behave(statuses=(200, 200, 200, 500))
    with site.traffic("bad", *_KINDS, rate=15) as loads:
        _in_phase(control, "bad", "rolled_back")
        row = _rollout(control, "bad")
        assert row["split"] == {"bad-new": 0, "bad-old": 100}
        assert "bad evaluations in a row" in row["reason"]
        eventually(lambda: _counting(control, "bad-new") == set(_KINDS))
        bad = [item for item in _evaluations(control, "bad") if item["verdict"] == "bad"]
        assert len(bad) == 2
        assert all(item["old"]["errors"] == 0 for item in bad)
        assert all(0.1 < item["new"]["rate"] < 0.4 for item in bad), "every fourth answer is an error"
        steps = _steps(control, "bad")
        assert [action for action, _ in steps] == [
            "rollout progressing (step 1, 40 %)", "rollout rolled_back (the split in the files)",
        ]  # fmt: skip
        assert steps[-1][1] == row["reason"]
        _only(control, loads, "bad-old")
        evaluations = len(_evaluations(control, "bad"))
        control.kill()
        control.start()
        _only(control, loads, "bad-old")
        time.sleep(4)  # an interval
        assert _rollout(control, "bad")["phase"] == "rolled_back"
        assert len(_evaluations(control, "bad")) == evaluations
        assert len(_steps(control, "bad")) == 2, "each step is done once"
    for load in loads:
        by_old = [item for item in load.load.responses if item.replica == "bad-old"]
        assert {item.status for item in by_old} == {200}
        assert {item.status for item in load.load.failures} <= {500}


def test_slow_variant_is_rolled_back_by_each_proxys_latency(site: Site) -> None:
    control = site.control
    with ExitStack() as stack:
        loads = []
        for kind in _KINDS:
            site.replicas[f"slow-{kind}-old"].behave(delay=0.02)
            site.replicas[f"slow-{kind}-new"].behave(delay=0.25)
            loads += stack.enter_context(site.traffic(f"slow-{kind}", kind, rate=20))
        for kind in _KINDS:
            route = f"slow-{kind}"
            _in_phase(control, route, "rolled_back")
            assert "first_byte p90 is " in _rollout(control, route)["reason"], kind
            bad = [item for item in _evaluations(control, route) if item["verdict"] == "bad"]
            for item in bad:
                (latency,) = item["metrics"]
                assert (latency["name"], latency["verdict"]) == ("first_byte p90", "bad"), kind
                assert latency["new"] > 240, kind
                assert 15 < latency["old"] < latency["new"] / 1.2, kind
    for load in loads:
        load.load.assert_no_failure()


def test_prometheus_query_decides_and_a_silent_one_does_not(tmp_path: Path) -> None:
    with ExitStack() as stack:
        gauges = [stack.enter_context(Gauge(f"query-{variant}")) for variant in ("old", "new")]
        addresses = [gauge.address for gauge in gauges]
        server = stack.enter_context(prometheus(tmp_path, replicas=addresses))
        query = 'max(max_over_time(work{pool="{pool}"}[6s]))'
        metric = {"name": "work", "source": server.url, "query": query, "max_ratio": 2}
        criteria = {"hold": "1h", "interval": "2s", "min_requests": 20, "metrics": [metric]}
        control, client, _ = stack.enter_context(_one_envoy("query", **criteria))
        request = Request("POST", "/query/v1/completions", timeout=20.0)
        load = stack.enter_context(client.steady(40, lambda _: request, keep_alive=False))
        eventually(lambda: any(item["verdict"] == "good" for item in _evaluations(control, "query")), _LONG)

        server.scrape()
        eventually(lambda: len(_unanswered_since_good(control)) >= 2, _LONG)
        assert {item["verdict"] for item in _unanswered_since_good(control)} == {"inconclusive"}
        rollout = _rollout(control, "query")
        assert (rollout["phase"], rollout["percent"]) == ("progressing", 40.0)

        gauges[1].value = 3.0
        server.scrape(replicas=addresses)
        _in_phase(control, "query", "rolled_back")
        bad = [item for item in _evaluations(control, "query") if item["verdict"] == "bad"]
        assert [item["new"]["errors"] for item in bad] == [0] * len(bad)
        assert {item["metrics"][-1]["ratio"] for item in bad} == {3.0}
        assert "work" in _rollout(control, "query")["reason"]
        load.load.assert_no_failure()


def _unanswered_since_good(control: ControlPlane) -> list[dict[str, Any]]:
    """Return the evaluations since the last good one for which the query had no result."""
    evaluations = _evaluations(control, "query")
    good = max(number for number, item in enumerate(evaluations) if item["verdict"] == "good")
    return [
        item
        for item in evaluations[good:]
        if any("returned no result" in str(each["problem"]) for each in item["metrics"])
    ]


def test_wait_reports_each_step_and_the_end_of_a_rollout(capsys: pytest.CaptureFixture[str]) -> None:
    with _one_envoy("chat", hold="1h") as (control, client, members):

        def fail_in_step_two() -> None:
            eventually(lambda: _rollout(control, "chat")["percent"] == 60.0)
            members["chat-new"].behave(status=500)

        with client.steady(40, Request("POST", "/chat/v1/completions", timeout=20.0)):
            credentials = ["--server", control.url, "--token-file", str(control.state / "api-token")]
            _in_phase(control, "chat", "progressing")
            failing = Thread(target=fail_in_step_two)
            failing.start()
            assert run(["rollout", "promote", "chat", "--wait", *credentials]) == 3
            failing.join()
        messages = capsys.readouterr().err
        # their order depends on the end of an interval
        reason = "(its error rate is significantly higher|nearly all of its requests failed)"
        assert re.search(rf"step 2 is bad, {reason}: new ", messages)
        assert "(100.00 %), old 0 of " in messages
        ended = (
            "the rollout of chat is rolled_back, the split in the files applies: {chat-new: 0, chat-old: 100}: 2 bad"
        )
        assert ended in messages
        assert '"waits_for": null' in json.dumps(control.get("rollouts"))

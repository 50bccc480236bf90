"""Rollouts by analysis on Envoy, HAProxy and nginx, with the proxies' own counts of real traffic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Steady
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.edges import Edge
from tests.support.processes.exporters import Counter
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.prometheus import prometheus
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_LONG = 120.0
"""Seconds in which a rollout of some intervals is over, on a busy machine too."""
_NAMES = ("edge", "ha", "ng")
_REQUEST = Request("POST", "/v1/completions", timeout=20.0)
_PASSIVE = {"consecutive_5xx": 1000, "consecutive_connect_failures": 1000, "error_rate": {"min_requests": 100000}}
_HEALTH = {"health": {"passive": _PASSIVE}}
"""No proxy takes the replica with errors out, so that all of its errors are seen."""


def _fleet(old: Replica, new: Replica, sites: list[Edge], hold: str = "8s", **analysis: Any) -> Fleet:
    criteria = {"interval": "5s", "min_requests": 60, "max_error_rate": "2%", "failures": 2, **analysis}
    steps = [{"percent": "40%", "hold": hold}, {"percent": "60%", "hold": hold}, {"percent": "100%"}]
    rollout = {"to": "new", "mode": "analysis", "steps": steps, "analysis": criteria}
    split = {"split": {"old": 100, "new": 0}, "sticky_split": {"cookie": "variant"}}
    fleet: Fleet = {
        "version": 1,
        **driven("edge"),
        "routes": {"chat": {"match": {"path_prefix": "/"}, **split, "rollout": rollout}},
        "pools": {
            name: pool_of([replica], model={"name": "m", "version": name}, **_HEALTH)
            for name, replica in (("old", old), ("new", new))
        },
    }
    for site in sites:
        for section, entries in site.sections.items():
            fleet[section] = {**fleet[section], **entries}
    return fleet


@contextmanager
def _all_proxies(old: Replica, new: Replica, **analysis: Any) -> Iterator[tuple[ControlPlane, list[Steady]]]:
    """`serve`, an Envoy, a HAProxy and an nginx, each with steady traffic."""
    with ExitStack() as stack:
        sites = [stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())]
        fleet = _fleet(old, new, sites, **analysis)
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("edge", ["edge"], by_socket=True))
        _in_sync(control)
        clients = [envoy.client(), *sites]
        yield control, [stack.enter_context(each.steady(20, lambda _: _REQUEST, keep_alive=False)) for each in clients]


@contextmanager
def _one_proxy(kind: str, old: Replica, new: Replica, **analysis: Any) -> Iterator[tuple[ControlPlane, Steady]]:
    """`serve` and one proxy with steady traffic."""
    with ExitStack() as stack:
        makers = {"ha": edges.haproxy, "ng": edges.nginx}
        sites = [stack.enter_context(makers[kind]())] if kind in makers else []
        fleet = _fleet(old, new, sites, **analysis)
        if sites:
            fleet["proxies"] = {name: entry for name, entry in fleet["proxies"].items() if name == kind}
        for site in sites:
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet))
        client = sites[0] if sites else stack.enter_context(control.envoy("edge", ["edge"], by_socket=True)).client()
        eventually(lambda: control.proxies.get(kind, {}).get("last_good") == _version(control), _LONG)
        yield control, stack.enter_context(client.steady(40, lambda _: _REQUEST, keep_alive=False))


def _version(control: ControlPlane) -> str:
    return str(control.status["snapshot"]["version"])


def _in_sync(control: ControlPlane) -> None:
    version = control.status["snapshot"]["version"]
    eventually(lambda: all(control.proxies.get(name, {}).get("last_good") == version for name in _NAMES), _LONG)


def _evaluations(control: ControlPlane) -> list[dict[str, Any]]:
    return list(control.rollout["analysis"]["evaluations"])


def _steps(control: ControlPlane) -> list[tuple[str, str]]:
    """What the audit log has of the rollout: actions and reasons."""
    records = control.get("audit")["records"]
    return [(item["action"], item["reason"]) for item in records if item["action"].startswith("rollout")]


def _reporting(control: ControlPlane) -> set[str]:
    """The proxies that have counted requests of the new pool."""
    series = control.metrics().items()
    pool = [name for name, value in series if name.startswith("lbctl_replica_requests_total") and value]
    return {proxy for proxy in _NAMES for name in pool if f'proxy="{proxy}"' in name and 'pool="new"' in name}


def _in_phase(control: ControlPlane, phase: str) -> None:
    eventually(lambda: control.rollout["phase"] == phase, _LONG)


def _only(control: ControlPlane, loads: list[Steady], pool: str) -> None:
    _in_sync(control)
    eventually(lambda: all(set(load.since(time.monotonic()).by_replica) == {pool} for load in loads))
    began = time.monotonic()
    time.sleep(2)
    assert [set(load.since(began).by_replica) for load in loads] == [{pool}] * len(loads)


def test_a_good_variant_is_promoted_over_a_killed_serve_and_no_request_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    latency = {"percentile": "p90", "ratio": 3}
    with replicas("old", "new") as (old, new), _all_proxies(old, new, max_latency=latency) as (control, loads):
        eventually(lambda: any(item["verdict"] == "good" for item in _evaluations(control)), _LONG)
        before = control.rollout
        control.kill()
        control.start()
        assert _evaluations(control)[: len(before["analysis"]["evaluations"])] == before["analysis"]["evaluations"]
        _in_phase(control, "promoted")
        actions = [action for action, _ in _steps(control)]
        assert actions == [
            "rollout progressing (step 1, 40 %)", "rollout progressing (step 2, 60 %)",
            "rollout promoted (step 3, 100 %)",
        ], "nothing is lost and nothing is done twice"  # fmt: skip
        assert all(reason.startswith("good: new 0 errors in ") for _, reason in _steps(control)[1:])
        assert run(["rollout", "status", "--server", control.url]) == 0
        shown = capsys.readouterr().out
        assert "promoted" in shown
        assert "good" in shown
        assert control.metric("lbctl_rollout_verdict_total") >= 2
        eventually(lambda: _reporting(control) == set(_NAMES))
        _only(control, loads, "new")
        for load in loads:
            load.load.assert_no_failure()


def test_a_bad_variant_is_rolled_back_on_all_proxies_and_the_good_one_loses_nothing() -> None:
    with replicas("old", "new") as (old, new):
        new.behave(statuses=(200, 200, 200, 500))
        with _all_proxies(old, new) as (control, loads):
            _in_phase(control, "rolled_back")
            row = control.rollout
            assert row["split"] == {"new": 0, "old": 100}
            assert "bad evaluations in a row" in row["reason"]
            eventually(lambda: _reporting(control) == set(_NAMES))
            bad = [item for item in _evaluations(control) if item["verdict"] == "bad"]
            assert len(bad) == 2
            assert all(item["old"]["errors"] == 0 for item in bad)
            assert all(0.1 < item["new"]["rate"] < 0.4 for item in bad)
            assert [action for action, _ in _steps(control)] == [
                "rollout progressing (step 1, 40 %)", "rollout rolled_back (split of the files)",
            ]  # fmt: skip
            assert _steps(control)[-1][1] == row["reason"]
            _only(control, loads, "old")
            control.kill()
            control.start()
            time.sleep(6)
            assert control.rollout["phase"] == "rolled_back"
            assert len(_steps(control)) == 2, "nothing is done twice"
            _only(control, loads, "old")
            for load in loads:
                by_old = [item for item in load.load.responses if item.replica == "old"]
                assert {item.status for item in by_old} == {200}
                assert {item.status for item in load.load.failures} <= {500}


@pytest.mark.parametrize("kind", _NAMES)
def test_a_slower_variant_is_rolled_back_by_the_latency_that_each_proxy_measures(kind: str) -> None:
    with replicas("old", "new") as (old, new):
        old.behave(delay=0.02)
        new.behave(delay=0.25)
        with _one_proxy(kind, old, new, max_latency={"percentile": "p90"}) as (control, load):
            _in_phase(control, "rolled_back")
            assert "first_byte p90 is " in control.rollout["reason"]
            bad = [item for item in _evaluations(control) if item["verdict"] == "bad"]
            for item in bad:
                (latency,) = item["metrics"]
                assert (latency["name"], latency["verdict"]) == ("first_byte p90", "bad")
                assert latency["new"] > 240
                assert 15 < latency["old"] < latency["new"] / 1.2
            load.load.assert_no_failure()


def test_a_real_prometheus_tells_what_proxies_cannot_see_and_a_silent_one_decides_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        old, new = stack.enter_context(replicas("old", "new"))
        counters = [stack.enter_context(Counter(name)) for name in ("old", "new")]
        addresses = [counter.address for counter in counters]
        server = stack.enter_context(prometheus(tmp_path, replicas=addresses))
        query = 'sum(rate(work_total{pool="{pool}"}[6s]))'
        metric = {"name": "work", "source": server.url, "query": query, "max_ratio": 2}
        criteria = {"hold": "1h", "interval": "2s", "min_requests": 20, "metrics": [metric]}
        control, load = stack.enter_context(_one_proxy("ha", old, new, **criteria))
        eventually(lambda: any(item["verdict"] == "good" for item in _evaluations(control)), _LONG)

        server.scrape()
        eventually(lambda: len(_unanswered_since_good(control)) >= 2, _LONG)
        assert {item["verdict"] for item in _unanswered_since_good(control)} == {"inconclusive"}
        assert (control.rollout["phase"], control.rollout["percent"]) == ("progressing", 40.0)

        counters[1].rate = 3.0
        server.scrape(replicas=addresses)
        _in_phase(control, "rolled_back")
        bad = [item for item in _evaluations(control) if item["verdict"] == "bad"]
        assert [item["new"]["errors"] for item in bad] == [0] * len(bad)
        ratios = [item["metrics"][-1]["ratio"] for item in bad]
        assert min(ratios) > 2
        assert ratios[-1] == pytest.approx(3.0, rel=0.3), "its rate is that of one time, not of both"
        assert "work" in control.rollout["reason"]
        load.load.assert_no_failure()


def _unanswered_since_good(control: ControlPlane) -> list[dict[str, Any]]:
    """The evaluations since the last good one for which the query had no result."""
    evaluations = _evaluations(control)
    good = max(number for number, item in enumerate(evaluations) if item["verdict"] == "good")
    return [
        item for item in evaluations[good:] if any("has no result" in str(each["problem"]) for each in item["metrics"])
    ]


def test_wait_reports_each_step_with_its_numbers_and_ends_with_the_rollout(capsys: pytest.CaptureFixture[str]) -> None:
    with replicas("old", "new") as (old, new):
        new.behave(status=500)
        fleet = _fleet(old, new, [])
        with controlling(fleet) as control, control.envoy("edge", ["edge"], by_socket=True) as envoy:
            with envoy.client().steady(60, lambda _: _REQUEST):
                token = ["--server", control.url, "--token-file", str(control.state / "api-token")]
                _in_phase(control, "progressing")
                assert run(["rollout", "promote", "chat", "--wait", *token]) == 3
            said = capsys.readouterr().err
            assert "step 2 is bad, its errors are more than chance explains: new " in said
            assert "(100.00 %), old 0 of " in said
            assert "the rollout of chat is rolled_back, the split of the files holds: {new: 0, old: 100}: 2 bad" in said
            events = json.dumps(control.get("rollouts"))
            assert '"waits_for": null' in events

"""Rollouts to a pool whose replicas are dead, initially or in the middle, on Envoy, HAProxy and nginx.

One control plane with one proxy of each kind serves all rollouts of this module. Each proxy has separate routes, so
that only its own reports decide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.polling import POLLED_EACH_SECOND
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_KINDS = ("envoy", "haproxy", "nginx")


def one_of_them(kind: str) -> list[Any]:
    """Return the proxies as parameters: one for every run, the others for the nightly ones."""
    return [pytest.param(each, marks=() if each == kind else pytest.mark.nightly) for each in _KINDS]


_LONG = 60.0
"""Maximum seconds of a rollout, even on a busy machine."""
_CHECKED = {"health": {"active": {"http": {"path": "/health"}, "interval": "1s", "unhealthy_threshold": 6}}}
"""A replica that a busy machine delays for some seconds is not down. Only the first check decides."""


@dataclass(frozen=True)
class Site:
    """The control plane, a client of each proxy, and the replicas by name."""

    control: ControlPlane
    clients: Mapping[str, Client]
    replicas: Mapping[str, Replica]

    def rollout(self, route: str) -> dict[str, Any]:
        """Return the rollout of the route, once the control plane has one."""
        rows: dict[str, dict[str, Any]] = {}

        def has_row() -> bool:
            rows.update({row["route"]: row for row in self.control.get("rollouts")["rollouts"]})
            return route in rows

        eventually(has_row)
        return rows[route]

    def actions(self, route: str) -> list[str]:
        """Return the actions on the rollout of the route in the audit log."""
        records = [item for item in self.control.get("audit")["records"] if item["subject"] == route]
        return [item["action"] for item in records if item["action"].startswith("rollout")]

    def problem(self, route: str) -> tuple[str, str] | None:
        """Return severity and kind of the problem about the route's rollout."""
        problems = self.control.get("status")["problems"]
        return next(((row["severity"], row["kind"]) for row in problems if row["subject"] == route), None)

    def cli(self, *words: str) -> int:
        return run(
            ["rollout", *words, "--server", self.control.url, "--token-file", str(self.control.state / "api-token")]
        )


def _route(name: str, kind: str, mode: str, hold: str, **keys: Any) -> dict[str, Any]:
    steps = [{"percent": "30%", "hold": hold}, {"percent": "100%"}]
    return {
        "match": {"path_prefix": f"/{name}/"},
        "listeners": [kind],
        "split": {f"{name}-old": 100, f"{name}-new": 0},
        "rollout": {"to": f"{name}-new", "mode": mode, "steps": steps, **keys},
    }


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    criteria = {"interval": "2s", "min_requests": 10, "max_error_rate": "2%", "failures": 2}
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        names = [
            *(f"{name}-{kind}-old" for kind in _KINDS for name in ("dead", "fails")),
            *(f"dies-{kind}-{end}" for kind in _KINDS for end in ("old", "new")),
        ]
        members = {item.name: item for item in stack.enter_context(replicas(*names))}
        haproxy, nginx = stack.enter_context(edges.haproxy("haproxy")), stack.enter_context(edges.nginx("nginx"))
        routes = {
            **{
                f"{name}-{kind}": _route(f"{name}-{kind}", kind, "analysis", "1s", analysis=criteria)
                for kind in _KINDS
                for name in ("dead", "fails")
            },
            **{f"dies-{kind}": _route(f"dies-{kind}", kind, "manual", "1h") for kind in _KINDS},
        }
        pools = {name: pool_of([item], **_CHECKED, **POLLED_EACH_SECOND) for name, item in members.items()}
        dead_pools = [f"{name}-{kind}-new" for kind in _KINDS for name in ("dead", "fails")]
        for name in dead_pools:
            dead = [{"name": "gone", "address": f"{HOST}:{free_port()}"}]
            pools[name] = {"replicas": dead, **_CHECKED, **POLLED_EACH_SECOND}
        fleet: Fleet = edges.add({"version": 1, **driven("envoy"), "routes": routes, "pools": pools}, haproxy, nginx)
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        manual = {name: {**route, "rollout": {**route["rollout"], "mode": "manual"}} for name, route in routes.items()}
        for route in manual.values():
            route["rollout"].pop("analysis", None)
        control = stack.enter_context(controlling({**fleet, "routes": manual}))
        envoy = stack.enter_context(control.envoy("envoy", ["envoy"], by_socket=True))
        fleet["proxies"]["envoy"]["admin"] = f"{HOST}:{envoy.admin}"
        control.write({**fleet, "routes": manual})
        site = Site(control, {"envoy": envoy.client(), "haproxy": haproxy, "nginx": nginx}, members)
        eventually(lambda: all(_state(site, name) == "down" for name in dead_pools), _LONG)
        eventually(lambda: not any(_state(site, name) in ("down", "starting") for name in members), _LONG)
        control.write(fleet)
        yield site


def _state(site: Site, pool: str) -> str:
    rows = {item["name"]: item for item in site.control.get("pools")["pools"]}
    return str(rows[pool]["replicas"][0]["state"])


@pytest.mark.parametrize("kind", one_of_them("envoy"))
def test_rollout_to_a_dead_pool_does_not_begin(kind: str, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    route = f"dead-{kind}"
    eventually(lambda: site.rollout(route)["mode"] == "analysis" and site.rollout(route)["unavailable"])
    row = site.rollout(route)
    assert (row["phase"], row["percent"]) == ("waiting", None)
    assert row["unavailable"].startswith(f"pool {route}-new has no available replica: gone is down")
    eventually(lambda: site.actions(route) == ["rollout waiting (the split in the files)"] * 2)  # it was manual before
    assert site.problem(route) == ("critical", "rollout_waiting"), "status --check ends with 3"
    assert site.cli("start", route) == 1
    message = capsys.readouterr().err
    assert f"the rollout of {route} cannot start: pool {route}-new has no available replica" in message
    assert "--allow-unavailable" in message
    with site.clients[kind].steady(
        10, lambda _: Request("POST", f"/{route}/x", timeout=20.0), keep_alive=False
    ) as load:
        time.sleep(1)
        assert load.load.failures == []


def test_new_rollout_waits_for_the_first_check() -> None:
    with replicas("old") as (old,):
        dead = {"replicas": [{"name": "gone", "address": f"{HOST}:{free_port()}"}]}
        route = _route("chat", "envoy", "timed", "1h")
        pools = {"chat-old": pool_of([old]), "chat-new": dead}
        with controlling({"version": 1, **driven("envoy"), "routes": {"chat": route}, "pools": pools}) as control:
            site = Site(control, {}, {})
            eventually(lambda: site.rollout("chat")["unavailable"])
            time.sleep(1)
            assert site.actions("chat") == ["rollout waiting (the split in the files)"]


@pytest.mark.parametrize("kind", one_of_them("haproxy"))
def test_own_errors_of_a_proxy_end_an_allowed_rollout(kind: str, site: Site) -> None:
    route = f"fails-{kind}"
    eventually(lambda: site.rollout(route)["mode"] == "analysis")
    assert site.cli("start", route, "--allow-unavailable") == 0
    request = Request("POST", f"/{route}/x", timeout=20.0)
    with site.clients[kind].steady(40, lambda _: request, keep_alive=False) as load:
        eventually(lambda: site.rollout(route)["phase"] == "rolled_back", _LONG)
        assert site.problem(route) == ("warning", "rollout_failed")
        evaluations = site.rollout(route)["analysis"]["evaluations"]
        bad = [item for item in evaluations if item["verdict"] == "bad"]
        assert len(bad) == 2
        assert all(item["new"]["rate"] == 1 and item["old"]["errors"] == 0 for item in bad), bad
        assert any(action.endswith("unavailable target allowed") for action in site.actions(route))
        eventually(lambda: set(load.since(time.monotonic() - 0.5).by_replica) == {f"{route}-old"}, _LONG)
    counted = sum(item["new"]["requests"] for item in bad)  # with the requests of earlier, inconclusive intervals
    assert counted <= len(load.load.failures), "each request counts at most once"


@pytest.mark.parametrize("kind", one_of_them("nginx"))
def test_target_that_dies_ends_a_manual_rollout(kind: str, site: Site) -> None:
    route = f"dies-{kind}"
    assert site.cli("start", route) == 0
    request = Request("POST", f"/{route}/x", timeout=20.0)
    with site.clients[kind].steady(10, lambda _: request, keep_alive=False) as load:
        eventually(lambda: f"{route}-new" in load.since(time.monotonic() - 1).by_replica, _LONG)
        site.replicas[f"{route}-new"].refuse()
        eventually(lambda: site.rollout(route)["phase"] == "rolled_back", _LONG)
        assert "has no available replica" in site.rollout(route)["reason"]
        eventually(lambda: {item.status for item in load.since(time.monotonic() - 1).responses} == {200}, _LONG)
        began = time.monotonic()
        time.sleep(1)
        after = load.since(began)
        assert {item.status for item in after.responses} == {200}
        assert set(after.by_replica) == {f"{route}-old"}

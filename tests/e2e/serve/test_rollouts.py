"""Rollouts on Envoy, HAProxy and nginx: by time, by an operator, despite a killed control plane, with steady traffic.

One control plane with one proxy of each kind serves all rollouts of this module, each with its own route and pools.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet, fleet_of
from tests.support.processes import edges
from tests.support.processes.client import Client, Steady
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.engines import engines
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request, Response
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.state import refusing, saved
from tests.support.processes.waiting import eventually

_NAMES = ("edge", "ha", "ng")
_ROUTES = ("timed", "manual", "switch")


class Site:
    """The control plane, and a client of each of the three proxies."""

    def __init__(self, control: ControlPlane, fleet: Fleet, clients: list[Client]) -> None:
        self.control = control
        self.fleet = fleet
        self.clients = clients

    def begin(self, route: str, **rollout: Any) -> None:
        """Add a rollout to the route when all proxies have the fleet, so that none of its hold times passes in the
        meantime."""
        self.await_sync()
        self.fleet["routes"][route]["rollout"] = {"to": f"{route}-new", **rollout}
        self.control.write(self.fleet)
        assert self.rollout(route)["to"] == f"{route}-new"

    def rollout(self, route: str) -> dict[str, Any]:
        """Return the rollout of the route, when the control plane has it: shortly after it is ready."""
        rows: dict[str, dict[str, Any]] = {}

        def has_row() -> bool:
            rows.update({row["route"]: row for row in self.control.get("rollouts")["rollouts"]})
            return route in rows

        eventually(has_row)
        return rows[route]

    def await_sync(self) -> None:
        """Wait until all three proxies have the currently published fleet."""

        def all_have_it() -> bool:
            version, rows = self.control.status["snapshot"]["version"], self.control.proxies
            return all(rows[name].get("last_good") == version for name in _NAMES)

        eventually(all_have_it)

    @contextmanager
    def traffic(self, route: str) -> Iterator[list[Steady]]:
        """Send steady traffic through each proxy. No request may fail."""
        request = Request("POST", f"/{route}/v1/completions?n=4", timeout=20.0)
        with ExitStack() as stack:
            loads = [stack.enter_context(client.steady(15, request)) for client in self.clients]
            yield loads
        for load in loads:
            load.load.assert_no_failure()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    variants = [f"{route}-{variant}" for route in _ROUTES for variant in ("old", "new")]
    with ExitStack() as stack:
        stack.enter_context(short_pauses(HAPROXY_RELOADS))
        members = stack.enter_context(engines(*variants))
        haproxy, nginx = stack.enter_context(edges.haproxy()), stack.enter_context(edges.nginx())
        routes = {
            route: {
                "match": {"path_prefix": f"/{route}/"},
                "split": {f"{route}-old": 100, f"{route}-new": 0},
                "sticky_split": {"cookie": "variant"},
            }
            for route in _ROUTES
        }
        pools = {item.name: pool_of([item], model={"name": "m", "version": item.name}) for item in members}
        fleet = edges.add({"version": 1, **driven("edge"), "routes": routes, "pools": pools}, haproxy, nginx)
        for edge in (haproxy, nginx):
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet))
        envoy = stack.enter_context(control.envoy("edge", ["edge"]))
        yield Site(control, fleet, [envoy.client(), haproxy, nginx])


@contextmanager
def _without_proxies(old: int = 100) -> Iterator[ControlPlane]:
    """Run a control plane with a manual rollout that has not begun."""
    rollout = {"to": "new", "mode": "manual", "steps": [{"percent": "40%"}, {"percent": "100%"}]}
    routes = {
        "chat": {"match": {"path_prefix": "/"}, "split": {"old": old, "new": 0}, "rollout": rollout},
        "plain": {"match": {"path_prefix": "/x"}, "pool": "old"},
    }
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        pools = {name: {"replicas": [{"address": address}]} for name in ("old", "new")}
        fleet = {**fleet_of(listener={"bind": "127.0.0.1:9"}), "routes": routes, "pools": pools}
        control = stack.enter_context(controlling(fleet))
        assert control.rollout["phase"] == "waiting"
        yield control


def _cli(control: ControlPlane, *words: str) -> int:
    return run(["rollout", *words, "--server", control.url, "--token-file", str(control.state / "api-token")])


def _actions(control: ControlPlane) -> list[str]:
    records = control.get("audit")["records"]
    return [item["action"] for item in records if item["action"].startswith("rollout")]


def _only(loads: list[Steady], pool: str) -> None:
    """Wait until all requests go to this pool, and check that this does not change.

    On a connection that was kept over its reload, HAProxy's old process answers one more request and closes the
    connection.
    """
    eventually(lambda: all(set(load.since(time.monotonic()).by_replica) == {pool} for load in loads))
    began = time.monotonic()
    time.sleep(1)
    for load in loads:
        responses = load.since(began).responses
        assert any(response.replica == pool for response in responses)
        others = [response for response in responses if response.replica != pool]
        assert [response for response in others if not (load is loads[1] and _closes(response))] == []


def _closes(response: Response) -> bool:
    """Return whether the server closes the connection after this response."""
    return (response.header("connection") or "").lower() == "close"


def test_timed_rollout_is_promoted_despite_a_killed_serve(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    control, old, new = site.control, "timed-old", "timed-new"
    site.begin("timed", mode="timed", steps=[{"percent": "50%", "hold": "12s"}, {"percent": "100%"}])
    with site.traffic("timed") as loads:
        eventually(lambda: site.rollout("timed")["phase"] == "progressing")
        begun = site.rollout("timed")["since"]
        control.kill()
        control.start()
        eventually(lambda: site.rollout("timed")["phase"] == "promoted")
        log = control.log.splitlines()
        assert sum("route=timed " in line and " step=1 " in line for line in log) == 1, "each step is done once"
        assert site.rollout("timed")["since"] > begun
        site.await_sync()
        _only(loads, new)
        split = f"{{{new}: 100, {old}: 0}}"
        for command in (["status", "rollouts"], ["diff", str(control.files), "--against", "live"]):
            assert run([*command, "--server", control.url]) == 0
            assert split in capsys.readouterr().out
        render = ["render", str(control.files), "-t", "haproxy", "--proxy", "ha"]
        assert run(render) == 0
        by_files, warnings = capsys.readouterr()
        assert run([*render, "--server", control.url]) == 0
        live, live_warnings = capsys.readouterr()
        assert ("LB702" in warnings, "LB702" in live_warnings, live == by_files) == (True, False, False)

        assert _cli(control, "abort", "timed", "--reason", "worse answers", "--wait") == 0
        site.await_sync()
        _only(loads, old)
        control.kill()
        control.start()
        site.await_sync()
        _only(loads, old)
        rollout = site.rollout("timed")
        assert (rollout["phase"], rollout["reason"]) == ("aborted", "worse answers")
        assert all({old, new} <= set(load.load.by_replica) for load in loads)


def test_manual_rollout_keeps_sticky_clients(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    control, clients = site.control, site.clients
    site.begin("manual", mode="manual", steps=[{"percent": "40%"}, {"percent": "100%"}])
    assert [_variants(client) for client in clients] == [{"manual-old"}] * 3
    assert site.rollout("manual")["phase"] == "waiting"
    assert _cli(control, "promote", "manual") == 1
    assert "the rollout is waiting: start it first" in capsys.readouterr().err
    assert _cli(control, "start", "manual", "--wait") == 0
    assert "step 1 of 2: manual-new has 40 %" in capsys.readouterr().err
    site.await_sync()
    cookies = [_cookie_of_old(client) for client in clients]
    assert _cli(control, "set", "manual", "90", "--wait") == 0
    assert site.rollout("manual")["phase"] == "paused"
    metrics = control.metrics()
    assert metrics['lbctl_rollout_share{route="manual"}'] == 0.9
    assert metrics['lbctl_rollout_phase{phase="paused",route="manual"}'] == 1
    site.await_sync()
    sticky = [_variants(client, cookie) for client, cookie in zip(clients, cookies, strict=True)]
    assert sticky == [{"manual-old"}] * 3
    assert _cli(control, "promote", "manual", "--wait") == 0
    site.await_sync()
    eventually(lambda: [_variants(client) for client in clients] == [{"manual-new"}] * 3)
    site.fleet["routes"]["manual"]["split"] = {"manual-old": 1, "manual-new": 0}
    control.write(site.fleet)
    eventually(lambda: site.rollout("manual")["phase"] == "superseded")
    site.await_sync()
    eventually(lambda: [_variants(client) for client in clients] == [{"manual-old"}] * 3)


def _variants(client: Client, cookie: str = "") -> set[str | None]:
    """Return the pools that have answered twenty requests."""
    headers = [("cookie", cookie)] if cookie else []
    return {client.post("/manual/v1/completions?n=1", headers=headers).replica for _ in range(20)}


def _cookie_of_old(client: Client) -> str:
    """Return the cookie of a client that was assigned to the old pool. Of forty clients, some get each pool."""
    responses = [client.post("/manual/v1/completions?n=1") for _ in range(40)]
    assert {response.replica for response in responses} == {"manual-old", "manual-new"}
    return next(item for item in responses if item.replica == "manual-old").header("set-cookie").partition(";")[0]


def test_blue_green_switches_all_proxies_and_loses_nothing(site: Site) -> None:
    site.begin("switch", mode="manual", steps=[{"percent": "100%"}])
    with site.traffic("switch") as loads:
        _only(loads, "switch-old")
        assert _cli(site.control, "start", "switch", "--wait") == 0
        site.await_sync()
        assert site.rollout("switch")["phase"] == "promoted"
        _only(loads, "switch-new")
        assert _cli(site.control, "abort", "switch", "--wait") == 0
        site.await_sync()
        _only(loads, "switch-old")


def test_invalid_rollout_actions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with _without_proxies() as control:
        for words, message in (
            (["pause", "chat"], "the rollout of chat cannot pause: the rollout is waiting: start it first"),
            (["start", "plain"], "route 'plain' has no rollout; routes with a rollout: chat"),
            (["set", "chat", "101"], "101"),
        ):
            assert _cli(control, *words) in (1, 64)
            assert message in capsys.readouterr().err
        assert run(["rollout", "abort", "chat", "--server", control.url, "--token-file", "/nowhere"]) != 0
        for body in ({"route": "chat", "action": "fly"}, {"route": "chat", "action": "set", "percent": "x"}, {"a": 1}):
            token = (control.state / "api-token").read_text().strip()
            response = control._ask("POST", "/api/v1/rollouts", json=body, headers={"authorization": f"Bearer {token}"})
            assert response.status_code == 400, json.dumps(body)
        assert control.rollout["phase"] == "waiting"


def test_abort_that_cannot_be_saved_applies_and_is_saved_later(capsys: pytest.CaptureFixture[str]) -> None:
    with _without_proxies(old=1) as control:
        assert _cli(control, "start", "chat") == 0
        with refusing(control):
            assert _cli(control, "promote", "chat") == 4
            assert control.rollout["percent"] == 40
            capsys.readouterr()
            assert _cli(control, "abort", "chat") == 4
            message = capsys.readouterr().err
            assert "is aborted, but the state cannot be saved" in message
            assert "nothing was changed" not in message
            assert (control.rollout["phase"], control.rollout["split"]) == ("aborted", {"new": 0, "old": 1})
        eventually(lambda: '"aborted"' in saved(control, "rollouts"))
        control.kill()
        control.start()
        assert control.rollout["phase"] == "aborted"
        assert [action for action in _actions(control) if "," in action] == [
            "rollout start, progressing (step 1, 40 %)", "rollout abort, aborted (the split in the files)",
        ]  # fmt: skip
        assert _cli(control, "start", "chat") == 0, "actions are recorded again"

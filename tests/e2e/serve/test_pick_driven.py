"""HAProxy and nginx under `serve` ask its real picker: sessions stay, drains are obeyed, and every end is reported."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Load
from tests.support.processes.control import controlling
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import picker_section
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

EDGES: dict[str, Callable[[], Any]] = {
    "haproxy": lambda: edges.haproxy(min_interval="100ms"),
    "nginx": lambda: edges.nginx(min_interval="100ms"),
}


def _turn(session: str) -> Request:
    body = json.dumps({"model": "m", "prompt": session * 300}).encode()
    return Request("POST", "/v1/completions", (("content-type", "application/json"), ("x-session-id", session)), body)


def _fleet(site: edges.Edge, members: list[Replica]) -> Fleet:
    pool = {"replicas": [entry(item) for item in members], "balance": {"algorithm": "pick"}}
    fleet = fleet_of(pool, **picker_section())
    del fleet["listeners"]["gateway"]
    for section, entries in site.sections.items():
        fleet[section] = {**fleet.get(section, {}), **entries}
    return fleet


@pytest.mark.parametrize("kind", [*EDGES])
def test_sessions_stay_until_a_drain_and_the_picker_knows_when_requests_end(kind: str) -> None:
    with replicas("a", "b", "c") as three, EDGES[kind]() as site:
        fleet = _fleet(site, three)
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[site.name]["state"] == "SYNCED")

            def homes() -> dict[str, set[str | None]]:
                load = site.load(60, 4, lambda number: _turn(f"s{number % 12}"))
                load.assert_no_failure()
                found: dict[str, set[str | None]] = {}
                for response in load.responses:
                    found.setdefault(str(dict(response.json["headers"])["x-session-id"]), set()).add(response.replica)
                return found

            eventually(lambda: all(len(names) == 1 for names in homes().values()))
            eventually(lambda: homes() and control.metric("lbctl_pick_decisions_total") >= 60)
            eventually(lambda: control.metric("lbctl_pick_open") == 0.0)
            _pick_without_an_end(fleet, site.name)
            command = [sys.executable, "-m", "lbctl", "drain", "pool/a", "--reason", "test", "--server", control.url]
            waiting = ["--wait", "--token-file", str(control.state / "api-token")]  # a reload closes kept connections
            subprocess.run([*command, *waiting], check=True, capture_output=True)
            eventually(lambda: all("a" not in names for names in homes().values()))
            if kind == "haproxy":  # which says in its statistics that it has no such request
                eventually(lambda: control.metric("lbctl_pick_lost_ends_total") == 1.0)
                assert control.metric("lbctl_pick_open") == 0.0


def _pick_without_an_end(fleet: Fleet, proxy: str) -> None:
    """A question as the proxy asks it, for a request whose end is never reported."""
    host, port = fleet["control"]["picker"]["bind"].split(":")
    answer = requests.get(f"http://{host}:{int(port) + 1}/pick/pool", headers={"x-lbctl-proxy": proxy}, timeout=10)
    assert answer.status_code == 200


@pytest.mark.parametrize("kind", [*EDGES])
def test_a_replica_that_refuses_is_not_picked_and_the_others_share_its_requests(kind: str) -> None:
    with replicas("a", "b", "c") as three, EDGES[kind]() as site:
        fleet, numbers = _fleet(site, three), itertools.count()
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[site.name]["state"] == "SYNCED")

            def load(count: int) -> Load:
                found = site.load(count, 4, lambda _: _turn(f"s{next(numbers)}"))
                found.assert_no_failure()
                return found

            eventually(lambda: load(10) and control.metric("lbctl_pick_decisions_total") > 0)
            three[0].refuse()

            def refused() -> bool:
                load(10)
                question = {"pool": "pool", "session": "new", "body": "{}"}
                reasons = {item["name"]: item["reason"] for item in control.explain_pick(question)["candidates"]}
                return reasons == {"a": "a proxy could not reach it", "b": "", "c": ""}

            eventually(refused)
            assert load(100).shares() == pytest.approx({"b": 0.5, "c": 0.5}, abs=0.12)


@pytest.mark.parametrize("kind", [*EDGES])
def test_the_last_replica_can_be_drained_too_and_let_in_again(kind: str) -> None:
    with replicas("a") as one, EDGES[kind]() as site:
        fleet = _fleet(site, one)
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[site.name]["state"] == "SYNCED" and site.get().ok)
            credentials = ["--server", control.url, "--token-file", str(control.state / "api-token")]
            for command, status in (("drain", 503), ("undrain", 200)):
                lbctl = [sys.executable, "-m", "lbctl", command, "pool/a", *credentials]
                subprocess.run(lbctl, check=True, capture_output=True)
                eventually(lambda status=status: site.get().status == status)  # type: ignore[misc]
                eventually(lambda: control.proxies[site.name]["state"] == "SYNCED")

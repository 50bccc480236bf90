"""HAProxy and nginx under `serve` use its real picker: sessions stay on their replicas, drains apply, and every end is
reported."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Load
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.invocation import invoke
from tests.support.processes.picker import PICK, key_of, picker_section
from tests.support.processes.polling import POLLED_EACH_SECOND
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
    pool = {
        "replicas": [entry(item) for item in members], "balance": PICK, **POLLED_EACH_SECOND
    }  # fmt: skip
    fleet = fleet_of(pool, **picker_section())
    del fleet["listeners"]["gateway"]
    return edges.add(fleet, site)


@pytest.mark.parametrize("kind", [*EDGES])
def test_sessions_stay_until_a_drain_and_every_end_is_reported(kind: str) -> None:
    with replicas("a", "b", "c") as three, EDGES[kind]() as site:
        fleet = _fleet(site, three)
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[site.name]["state"] == "SYNCED")

            def homes() -> dict[str, set[str | None]]:
                load = site.load(60, 4, lambda number: _turn(f"s{number % 12}"))
                load.assert_no_failure()
                replicas_of: dict[str, set[str | None]] = {}
                for response in load.responses:
                    session = str(dict(response.json["headers"])["x-session-id"])
                    replicas_of.setdefault(session, set()).add(response.replica)
                return replicas_of

            eventually(lambda: all(len(names) == 1 for names in homes().values()))
            eventually(lambda: homes() and control.metric("lbctl_pick_decisions_total") >= 60)
            eventually(lambda: control.metric("lbctl_pick_open") == 0.0)
            assert _closed_connections(_port(fleet)) < 20, "the proxy keeps its connections to the picker"
            _pick_without_an_end(control, fleet, site.name)
            drain = ["drain", "pool/a", "--reason", "test", "--wait"]  # a reload closes kept connections
            credentials = ["--server", control.url, "--token-file", str(control.state / "api-token")]
            assert invoke([*drain, *credentials]).code == 0
            eventually(lambda: all("a" not in names for names in homes().values()))
            if kind == "haproxy":  # its statistics report that it has no such request
                eventually(lambda: control.metric("lbctl_pick_lost_ends_total") == 1.0)
                eventually(lambda: control.metric("lbctl_pick_open") == 0.0)


def _port(fleet: Fleet) -> int:
    """Return the port at which proxies query the picker."""
    return int(fleet["control"]["picker"]["bind"].split(":")[1]) + 1


def _closed_connections(port: int) -> int:
    """Return how many connections with the port were closed in the last minute (state TIME_WAIT)."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    suffix = f":{port:04X}"
    return sum(row[3] == "06" and (row[1].endswith(suffix) or row[2].endswith(suffix)) for row in rows)


def _pick_without_an_end(control: ControlPlane, fleet: Fleet, proxy: str) -> None:
    """Request a pick as the proxy does, for a request whose end is never reported."""
    headers = {"x-lbctl-proxy": proxy, **key_of(control)}
    answer = requests.get(f"http://127.0.0.1:{_port(fleet)}/pick/pool", headers=headers, timeout=10)
    assert answer.status_code == 200


@pytest.mark.parametrize("kind", [*EDGES])
def test_unreachable_replica_is_not_picked(kind: str) -> None:
    with replicas("a", "b", "c") as three, EDGES[kind]() as site:
        fleet, numbers = _fleet(site, three), itertools.count()
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[site.name]["state"] == "SYNCED")

            def load(count: int) -> Load:
                answers = site.load(count, 4, lambda _: _turn(f"s{next(numbers)}"))
                answers.assert_no_failure()
                return answers

            eventually(lambda: load(10) and control.metric("lbctl_pick_decisions_total") > 0)
            three[0].refuse()

            def refused() -> bool:
                load(10)
                question = {"pool": "pool", "session": "new", "body": "{}"}
                reasons = {item["name"]: item["reason"] for item in control.explain_pick(question)["candidates"]}
                return reasons == {"a": "a proxy could not reach it", "b": "", "c": ""}

            eventually(refused)
            half = pytest.approx({"b": 0.5, "c": 0.5}, abs=0.12)
            eventually(lambda: load(100).shares() == half)


@pytest.mark.parametrize("kind", [*EDGES])
def test_last_replica_can_be_drained_and_undrained(kind: str) -> None:
    with replicas("a") as one, EDGES[kind]() as site:
        fleet = _fleet(site, one)
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[site.name]["state"] == "SYNCED" and site.get().ok)
            credentials = ["--server", control.url, "--token-file", str(control.state / "api-token")]
            for command, status in (("drain", 503), ("undrain", 200)):
                assert invoke([command, "pool/a", *credentials]).code == 0
                eventually(lambda status=status: site.get().status == status)  # type: ignore[misc]
                eventually(lambda: control.proxies[site.name]["state"] == "SYNCED")

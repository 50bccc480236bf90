"""The state of members in responses, events and metrics, including while the store is unavailable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from lbctl.cli import run
from tests.support.processes.fleet import fleet_of
from tests.support.processes.members import MemberPlane, members
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually
from tests.support.stores import RedisServer

pytestmark = pytest.mark.e2e


def _events(plane: MemberPlane, *names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the past and coming events of a member that have these names."""
    url = f"{plane.control.url}/api/v1/events"
    with requests.get(url, headers={"last-event-id": "0"}, stream=True, timeout=30) as answer:
        name = ""
        for line in answer.iter_lines(chunk_size=1, decode_unicode=True):
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name in names:
                yield name, json.loads(value)


def _refusal(plane: MemberPlane) -> str:
    answer = plane.write("POST", "overrides", {"kind": "drain", "pool": "pool", "replica": "a"})
    assert answer.status_code == 503, answer.text
    return str(answer.json()["error"])


def _age(plane: MemberPlane) -> float | None:
    age = requests.get(f"{plane.control.url}/api/v1/pools", timeout=30).headers.get("x-lbctl-age")
    return None if age is None else float(age)


def test_isolated_members_refuse_writes_and_report_their_age(
    redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://127.0.0.1:{redis.port}/0"
    with replicas("a", "b") as pair, members(fleet_of(pair), url, lease="10s") as (first, second):
        eventually(lambda: all(len(plane.rows) == 2 for plane in (first, second)))
        eventually(lambda: second.control.status["member"]["leader"] == "cp-1")
        assert _age(first) is None
        eventually(lambda: _age(second) is not None)
        assert run(["status", "--server", first.control.url]) == 0
        assert "cp-1, leader\n" in capsys.readouterr().out
        assert run(["status", "--server", second.control.url]) == 0
        assert "cp-2, follower: the leader is cp-1; this view is at most " in capsys.readouterr().out
        assert run(["status", "members", "--server", second.control.url]) == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["MEMBER", "ROLE", "EPOCH", "VERSION"]
        assert [row.split()[:3] for row in rows] == [
            ["cp-1", "leader", f"{first.epoch:.0f}"], ["cp-2", "follower", f"{first.epoch:.0f}"]
        ]  # fmt: skip
        for plane, leads in ((first, 1), (second, 0)):
            names = ("leader", "store_up", "members", "takeovers_total")
            assert [plane.control.metric(f"lbctl_ha_{name}") for name in names] == [leads, 1, 2, leads]
        assert second.control.metric("lbctl_ha_lag_seconds") >= 0
        redis.stop()
        eventually(lambda: first.rows["cp-1"]["role"] == "isolated")
        for plane in (first, second):
            assert f"nothing was changed: Redis 127.0.0.1:{redis.port} " in _refusal(plane)
        assert (_age(second) or 0) > 1, "the leader sends nothing any more"
        assert [plane.control.metric("lbctl_ha_store_up") for plane in (first, second)] == [0, 0]
        redis.start()
        eventually(lambda: first.leads or second.leads)
        events = _events(first, "role", "store")
        states = [next(events)[1] for _ in range(4)]
        assert [item.get("role", item.get("up")) for item in states] == ["leader", False, "isolated", True]
        assert f"127.0.0.1:{redis.port}" in states[1]["reason"]
        leader, other = (first, second) if first.leads else (second, first)
        eventually(lambda: (age := _age(other)) is not None and age < 1)
        eventually(lambda: other.control.status["member"]["leader"] == leader.name)
        redis.stop()
        url = leader.control.url
        leader.control.kill()
        assert f"no response from the leader at {url}: " in _refusal(other)


def test_deviating_files_and_moved_pools_are_events(redis: RedisServer) -> None:
    with replicas("a", "b") as pair:
        fleet = fleet_of(pair)
        with members(fleet, f"redis://127.0.0.1:{redis.port}/0", lease="10s") as (first, second):
            events = _events(first, "files_differ", "pools")
            assert [next(events)[1]["members"] for _ in range(2)] == [["cp-1"], ["cp-1", "cp-2"]]
            file = second.control.files / "fleet.yaml"
            before = file.read_text()
            for text, deviating in ((before + "# one line more\n", ["cp-2"]), (before, [])):
                second.control.write_text(text)
                name, event = next(events)
                assert (name, event["members"]) == ("files_differ", deviating)
            second.control.kill()
            assert next(events)[1]["members"] == ["cp-1"], "the remaining member takes over the pools"

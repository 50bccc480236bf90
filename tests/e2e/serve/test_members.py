"""Several members of one control plane with a real Redis and real Envoys."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lbctl.apply.haproxy.runtime import Runtime
from tests.e2e.support import background, edges
from tests.e2e.support.control import settled
from tests.e2e.support.fleet import fleet_of
from tests.e2e.support.members import MemberPlane, members
from tests.e2e.support.replicas import replicas
from tests.e2e.support.waiting import eventually
from tests.support.stores import RedisServer


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


def _in_step(planes: tuple[MemberPlane, ...]) -> bool:
    return len({item.version for item in planes}) == 1


def test_one_leads_all_serve_the_same_and_a_killed_leader_is_replaced(redis: RedisServer) -> None:
    with replicas("a", "b") as (a, b):
        fleet = fleet_of([a, b])
        with members(fleet, f"redis://127.0.0.1:{redis.port}/0") as (first, second):
            assert first.leads
            assert not second.leads
            assert _in_step((first, second))
            with second.control.envoy("edge") as edge:
                client = edge.client()
                pool = next(iter(fleet["pools"]))
                answer = second.write("POST", "overrides", {"kind": "drain", "pool": pool, "replica": "a"})
                assert answer.status_code == 200, answer.text
                eventually(lambda: {client.get("/").replica for _ in range(8)} == {"b"})
                assert _in_step((first, second))
                assert first.control.get("overrides") == second.control.get("overrides")
                settled(edge)
                updates = edge.updates()
                version, epoch = second.version, second.epoch
                first.control.kill()
                eventually(lambda: second.leads, 10)
                assert second.epoch > epoch
                assert second.version == version, "a takeover changes nothing that proxies have"
                assert {client.get("/").replica for _ in range(8)} == {"b"}
                assert edge.updates() == updates
                assert second.write("DELETE", "overrides", {"kind": "drain", "pool": pool, "replica": "a"}).ok
                eventually(lambda: {client.get("/").replica for _ in range(8)} == {"a", "b"})
                first.control.start()
                assert not first.leads
                assert _in_step((first, second))


def test_a_leader_that_was_stopped_sends_its_haproxy_nothing_more(redis: RedisServer) -> None:
    with ExitStack() as stack:
        a, b = stack.enter_context(replicas("a", "b"))
        site = stack.enter_context(edges.haproxy())
        fleet = fleet_of([a, b])
        for section, entries in site.sections.items():
            fleet[section] = {**fleet.get(section, {}), **entries}
        del fleet["listeners"]["gateway"]
        stack.enter_context(edges.started_edge(site, fleet))
        first, second = stack.enter_context(members(fleet, f"redis://127.0.0.1:{redis.port}/0", lease="2s"))
        pool = next(iter(fleet["pools"]))

        def drained() -> bool:
            question = Runtime(str(site.directory / "admin.sock")).query("show servers state")
            rows = [row.split() for row in "".join(background.wait(question).texts).splitlines()]
            return next(int(row[6]) & 0x0C for row in rows if row[1:2] == [f"pool_{pool}"] and row[3] == "a") != 0

        override = {"kind": "drain", "pool": pool, "replica": "a"}
        assert first.write("POST", "overrides", override).ok
        eventually(drained, 20)
        first.control.signal(signal.SIGSTOP)
        eventually(lambda: second.leads, 20)
        assert second.write("DELETE", "overrides", override).ok
        eventually(lambda: not drained(), 20)
        first.control.signal(signal.SIGCONT)
        eventually(lambda: not first.leads, 20)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            assert not drained()

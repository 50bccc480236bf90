"""Which proxies are read, and what of their reports counts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from lbctl.ir.topology import Topology
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.guard import Guard
from lbctl.serve.traffic import service
from lbctl.serve.traffic.interface import TrafficReport
from lbctl.serve.traffic.ledger import Counts, ReplicaCondition, ReplicaKey
from lbctl.serve.traffic.service import Traffic, with_websockets
from tests.support.fleet import compiled

FLEET = """\
version: 1
listeners: {main: {bind: "127.0.0.1:80"}}
routes:
  live: {match: {path_prefix: /live}, pool: talk, fallback: spare, websocket: true}
  all: {match: {path_prefix: /}, pool: plain}
pools:
  talk: {replicas: [{address: "10.0.0.1:80", name: a}]}
  spare: {replicas: [{address: "10.0.0.2:80", name: a}]}
  plain: {replicas: [{address: "10.0.0.3:80", name: a}]}
proxies: {ha: {kind: haproxy, runtime_api: /run/ha.sock}}
"""
PLAIN, TALK, GONE = ReplicaKey("plain", "a"), ReplicaKey("talk", "a"), ReplicaKey("plain", "gone")


class Scripted:
    """A source with these reports, one a poll."""

    def __init__(self, *reports: TrafficReport | None) -> None:
        self._reports = list(reports)

    async def poll(self) -> TrafficReport | None:
        return self._reports.pop(0) if self._reports else None


def published(topology: Topology) -> PublishedFleet:
    composed = SimpleNamespace(whole=SimpleNamespace(topology=topology, addresses={}))
    return cast(PublishedFleet, SimpleNamespace(composed=composed))


def poll(traffic: Traffic, times: int) -> None:
    """Polls the proxies of the fleet that often."""

    async def run() -> None:
        task = asyncio.ensure_future(traffic.tasks()["traffic counters"]())
        for _ in range(times):
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_a_report_counts_for_the_replicas_of_the_fleet_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {PLAIN: 2, TALK: 1, GONE: 5}
    first = TrafficReport(
        {key: Counts(count) for key, count in values.items()}, values, {GONE: ReplicaCondition("down")}
    )
    monkeypatch.setattr(service, "polled_source", lambda _: Scripted(first))
    traffic = Traffic(lambda: (), clock=lambda: 0.0)
    traffic.follow(published(compiled(FLEET).topology))
    poll(traffic, 1)
    assert traffic.ledger.totals() == {("ha", PLAIN): Counts(2), ("ha", TALK): Counts(1)}
    assert traffic.ledger.conditions(GONE, 0.0) == {}
    assert traffic.in_flight("plain", "a") == 2
    assert traffic.in_flight("talk", "a") is None, "an idle WebSocket counts as a request"


def test_of_a_proxy_that_does_not_answer_only_the_totals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_INTERVAL", 0.001)
    report = TrafficReport({PLAIN: Counts(3)}, {PLAIN: 3}, {PLAIN: ReplicaCondition("up")})
    monkeypatch.setattr(service, "polled_source", lambda _: Scripted(report, None))
    traffic = Traffic(lambda: (), clock=lambda: 0.0)
    traffic.follow(published(compiled(FLEET).topology))
    poll(traffic, 3)
    assert traffic.ledger.totals() == {("ha", PLAIN): Counts(3)}
    assert traffic.in_flight("plain", "a") is None
    assert traffic.ledger.conditions(PLAIN, 0.0) == {}


def test_a_proxy_whose_counters_cannot_be_read_does_not_keep_the_others_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        async def poll(self) -> TrafficReport | None:
            raise RuntimeError("a bug")

    failures: list[str] = []
    good = Scripted(TrafficReport({PLAIN: Counts(3)}))
    monkeypatch.setattr(service, "polled_source", lambda proxy: Broken() if proxy.name == "broken" else good)
    traffic = Traffic(lambda: (), clock=lambda: 0.0, guard=Guard(failures.append))
    more = "  broken: {kind: haproxy, runtime_api: /run/b.sock}\n"
    fleet = FLEET.replace("proxies: {ha: {", "proxies:\n  ha: {").replace("ha.sock}}", "ha.sock}")
    traffic.follow(published(compiled(fleet + more).topology))
    poll(traffic, 1)
    assert traffic.ledger.totals() == {("ha", PLAIN): Counts(3)}
    assert failures == ["traffic counters"]


def test_a_proxy_that_the_fleet_no_longer_has_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "polled_source", lambda _: Scripted(TrafficReport({PLAIN: Counts(3)})))
    traffic = Traffic(lambda: ["edge-1"], clock=lambda: 0.0)
    topology = compiled(FLEET).topology
    traffic.follow(published(topology))
    poll(traffic, 1)
    traffic.ledger.add("edge-1", {PLAIN: Counts(1)}, 0.0)
    traffic.follow(published(replace(topology, proxies=())))
    assert traffic.ledger.totals() == {("edge-1", PLAIN): Counts(1)}


def test_a_silent_websocket_is_no_sign_of_a_request() -> None:
    assert with_websockets(compiled(FLEET).topology) == {"talk", "spare"}

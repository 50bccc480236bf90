"""The traffic service: polled proxies, and the reports that count."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.address import Address
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic import service
from lbctl.serve.traffic.interface import TrafficReport
from lbctl.serve.traffic.ledger import Counts, ReplicaKey
from lbctl.serve.traffic.service import Traffic, with_websockets
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

PLAIN, TALK, GONE = ReplicaKey("pool", "a"), ReplicaKey("talk", "a"), ReplicaKey("pool", "gone")


def _topology(*proxies: str) -> Topology:
    """Return a fleet with a WebSocket route from the pool talk to the pool spare, and these HAProxies."""
    text = fleet_text(
        routes={"live": {"match": {"path_prefix": "/live"}, "pool": "talk", "fallback": "spare", "websocket": True}},
        pools={"talk": pool(replica(address="10.0.0.1:80")), "spare": pool(replica(address="10.0.0.2:80"))},
        proxies={name: {"kind": "haproxy", "runtime_api": f"/run/{name}.sock"} for name in proxies},
    )
    return compiled(text).topology


class Scripted:
    """A source that returns one of these reports for each poll."""

    def __init__(self, *reports: TrafficReport | None) -> None:
        self._reports = list(reports)

    async def poll(self) -> TrafficReport | None:
        return self._reports.pop(0) if self._reports else None


def published(topology: Topology) -> PublishedFleet:
    composed = SimpleNamespace(whole=SimpleNamespace(topology=topology, addresses={}))
    return cast(PublishedFleet, SimpleNamespace(composed=composed))


@pytest.mark.parametrize(
    ("entry", "logs", "opened"),
    [
        ({"config": "/a/haproxy.cfg", "reload": {"command": ["true"]}}, None, True),
        ({"config": "/a/haproxy.cfg", "reload": {"command": ["true"]}}, "127.0.0.1:{port}", False),
        ({"runtime_api": "/run/ha.sock"}, None, False),
    ],
)
def test_default_port_of_the_log_gives_way(entry: dict[str, object], logs: str | None, opened: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        taken = Address(*other.getsockname())
        control = {} if logs is None else {"control": {"logs": {"bind": logs.format(port=taken.port)}}}
        topology = compiled(fleet_text(proxies={"ha": {"kind": "haproxy", **entry}}, **control)).topology

        async def run() -> Address | None:
            traffic = Traffic(log_bind=lambda: taken)
            address = traffic.log_address(topology)
            traffic.close()
            return address

        address = asyncio.run(run())
        assert (address is not None and address.port != taken.port) == opened


def poll(traffic: Traffic, times: int) -> None:
    """Poll the proxies of the fleet for `times` short intervals."""

    async def run() -> None:
        task = asyncio.ensure_future(traffic.tasks()["traffic counters"]())
        for _ in range(times):
            await asyncio.sleep(0.02)
            for _ in range(100):
                await asyncio.sleep(0)  # the polls that are due on a machine that stood still
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_report_counts_only_for_replicas_of_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {PLAIN: 2, TALK: 1, GONE: 5}
    first = TrafficReport(
        {key: Counts(count) for key, count in values.items()}, values, {GONE: ReplicaCondition("down")}
    )
    monkeypatch.setattr(service, "polled_source", lambda _: Scripted(first))
    traffic = Traffic(lambda: (), clock=lambda: 0.0)
    traffic.use_fleet(published(_topology("ha")))
    poll(traffic, 1)
    assert traffic.ledger.totals() == {("ha", PLAIN): Counts(2), ("ha", TALK): Counts(1)}
    assert traffic.ledger.conditions(GONE, 0.0) == {}
    assert traffic.requests_of("pool", "a").in_flight == 2
    assert traffic.requests_of("talk", "a").in_flight is None, "an idle WebSocket counts as a request"


def test_silent_proxy_keeps_only_its_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_INTERVAL", 0.001)
    report = TrafficReport({PLAIN: Counts(3)}, {PLAIN: 3}, {PLAIN: ReplicaCondition("up")})
    monkeypatch.setattr(service, "polled_source", lambda _: Scripted(report, None))
    traffic = Traffic(lambda: (), clock=lambda: 0.0)
    traffic.use_fleet(published(_topology("ha")))
    poll(traffic, 3)
    assert traffic.ledger.totals() == {("ha", PLAIN): Counts(3)}
    assert traffic.requests_of("pool", "a").in_flight is None
    assert traffic.ledger.conditions(PLAIN, 0.0) == {}


def test_failed_proxy_does_not_block_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        async def poll(self) -> TrafficReport | None:
            raise RuntimeError("a bug")

    failures: list[str] = []
    good = Scripted(TrafficReport({PLAIN: Counts(3)}))
    monkeypatch.setattr(service, "polled_source", lambda proxy: Broken() if proxy.name == "broken" else good)
    traffic = Traffic(lambda: (), clock=lambda: 0.0, guard=Guard(failures.append))
    traffic.use_fleet(published(_topology("ha", "broken")))
    poll(traffic, 1)
    assert traffic.ledger.totals() == {("ha", PLAIN): Counts(3)}
    assert failures == ["traffic counters"]


def test_removed_proxy_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "polled_source", lambda _: Scripted(TrafficReport({PLAIN: Counts(3)})))
    traffic = Traffic(lambda: ["edge-1"], clock=lambda: 0.0)
    topology = _topology("ha")
    traffic.use_fleet(published(topology))
    poll(traffic, 1)
    traffic.ledger.add("edge-1", {PLAIN: Counts(1)}, 0.0)
    traffic.use_fleet(published(replace(topology, proxies=())))
    assert traffic.ledger.totals() == {("edge-1", PLAIN): Counts(1)}


def test_pools_with_websockets_are_detected() -> None:
    assert with_websockets(_topology("ha")) == {"talk", "spare"}

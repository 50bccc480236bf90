"""Conditions of replicas from the clusters page of Envoy, and invalid pages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.snapshot import Snapshot
from lbctl.serve.traffic import envoy_conditions
from lbctl.serve.traffic.envoy_conditions import EnvoyConditions
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

A, B, S = ReplicaKey("llama", "a"), ReplicaKey("llama", "b"), ReplicaKey("llama", "s")


def published(port: int, instances: int = 1, address_of_a: str = "10.0.0.1") -> Any:
    """Return a published fleet with the pool llama and an Envoy whose admin endpoint has this port."""
    llama = pool(
        replica("a", f"{address_of_a}:8000"),
        replica("b", "10.0.0.2:8000"),
        replica("s", "unix:/run/engine.sock"),
    )
    routes = {"llama": {"match": {"path_prefix": "/llama"}, "pool": "llama"}}
    edge = {"kind": "envoy", "admin": f"127.0.0.1:{port}", "instances": instances}
    text = fleet_text(routes=routes, pools={"llama": llama}, proxies={"edge": edge, "other": {"kind": "haproxy"}})
    return SimpleNamespace(composed=SimpleNamespace(whole=Snapshot(compiled(text).topology)))


def host(address: str, **flags: Any) -> dict[str, Any]:
    where = (
        {"pipe": {"path": address}} if "/" in address else {"socket_address": {"address": address, "port_value": 8000}}
    )
    return {"address": where, "health_status": {"eds_health_status": "HEALTHY", **flags}}


def page(**clusters: list[dict[str, Any]]) -> bytes:
    statuses = [{"name": name, "host_statuses": hosts} for name, hosts in clusters.items()]
    return json.dumps({"cluster_statuses": [*statuses, {"name": "without hosts"}]}).encode()


@asynccontextmanager
async def admin(body: bytes, status: int = 200, delay: float = 0.0, path: str = "") -> AsyncIterator[int]:
    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.path_qs == "/clusters?format=json"
        await asyncio.sleep(delay)
        return web.Response(body=body, status=status, headers={"location": "/elsewhere"})

    loop = asyncio.get_running_loop()
    if path:
        async with await loop.create_unix_server(web.Server(answer), path):
            yield 0
        return
    async with await loop.create_server(web.Server(answer), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def read(
    ledger: TrafficLedger, port: int, nodes: list[str], instances: int, is_read: Callable[[], object]
) -> None:
    """Read the page of the fleet's only Envoy once."""
    conditions = EnvoyConditions(ledger, lambda _: nodes, clock=lambda: 0.0)
    conditions.use_fleet(published(port, instances))
    task = asyncio.create_task(conditions.run())
    async with asyncio.timeout(60):
        while not is_read():
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def conditions_of(ledger: TrafficLedger) -> dict[ReplicaKey, dict[str, ReplicaCondition]]:
    return {key: dict(conditions) for key in (A, B, S) if (conditions := ledger.conditions(key, 0.0))}


def conditions_from(body: bytes, nodes: list[str], **more: Any) -> dict[ReplicaKey, dict[str, ReplicaCondition]]:
    ledger = TrafficLedger()

    async def run() -> None:
        async with admin(body, more.get("status", 200), more.get("delay", 0.0)) as port:
            is_read = more.get("is_read", lambda: conditions_of(ledger))
            await read(ledger, port, nodes, more.get("instances", 1), is_read)

    asyncio.run(asyncio.wait_for(run(), 120))
    return conditions_of(ledger)


def test_failed_check_is_down_and_outlier_is_ejected() -> None:
    body = page(
        llama=[
            host("10.0.0.1", failed_active_health_check=True, active_hc_timeout=True, failed_outlier_check=True),
            host("10.0.0.2", failed_outlier_check=True),
            host("/run/engine.sock"),
            host("10.9.9.9", failed_active_health_check=True),
        ],
        strange=[host("10.0.0.1", failed_active_health_check=True)],
    )
    assert conditions_from(body, ["edge-1"]) == {
        A: {"edge-1": ReplicaCondition("down", "failed_active_health_check, active_hc_timeout")},
        B: {"edge-1": ReplicaCondition("ejected", "failed_outlier_check")},
    }, "what is up is in no trouble"


def test_worst_cluster_of_a_pool_counts() -> None:
    body = page(
        **{
            "llama": [host("10.0.0.1"), host("10.0.0.2", eds_health_status="DRAINING")],
            "llama|eu": [host("10.0.0.1", failed_active_health_check=True, pending_active_hc=True), host("10.0.0.2")],
        }
    )
    assert conditions_from(body, ["edge-1"]) == {
        A: {"edge-1": ReplicaCondition("starting", "pending_active_hc")},
        B: {"edge-1": ReplicaCondition("draining", "eds_health_status DRAINING")},
    }


@pytest.mark.parametrize("nodes", [[], ["edge-1", "edge-2"]], ids=["none", "two"])
def test_without_exactly_one_node_the_entry_is_reported(nodes: list[str]) -> None:
    body = page(llama=[host("10.0.0.1", failed_outlier_check=True)])
    assert conditions_from(body, nodes) == {A: {"edge": ReplicaCondition("ejected", "failed_outlier_check")}}


def test_entry_with_several_instances_is_not_read() -> None:
    body = page(llama=[host("10.0.0.1", failed_outlier_check=True)])
    end = time.monotonic() + 0.2
    assert conditions_from(body, ["edge-1"], instances=2, is_read=lambda: time.monotonic() > end) == {}


def test_each_instance_is_read_by_the_socket_that_it_states(tmp_path: Path) -> None:
    body = page(llama=[host("10.0.0.1", failed_outlier_check=True)])
    ledger, path = TrafficLedger(), tmp_path / "admin.sock"

    async def run() -> None:
        async with admin(body, path=str(path)):
            admins = {"edge-1": f"unix:{path}", "edge-2": f"unix:{path}.none", "edge-3": "no address"}
            conditions = EnvoyConditions(ledger, lambda _: ["edge-1", "edge-2"], lambda: admins, lambda: 0.0)
            conditions.use_fleet(published(1, instances=2))
            task = asyncio.create_task(conditions.run())
            while not conditions_of(ledger):
                await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 120))
    assert conditions_of(ledger) == {A: {"edge-1": ReplicaCondition("ejected", "failed_outlier_check")}}


@pytest.mark.parametrize(
    ("body", "more", "reason"),
    [
        (b"no JSON", {}, "not Envoy's /clusters page"),
        (b"[" * 100_000, {}, "not Envoy's /clusters page"),
        (b'{"cluster_statuses": [{"name": 7}]}', {}, "not Envoy's /clusters page"),
        (b'{"cluster_statuses": [{"name": "llama", "host_statuses": [1]}]}', {}, "not Envoy's /clusters page"),
        (page(), {"status": 302}, "status 302"),
        (b"{" + b" " * 2000, {}, "larger than"),
        (page(), {"delay": 5}, "no complete response"),
    ],
    ids=["text", "nested", "types", "hosts", "redirect", "huge", "late"],
)
def test_invalid_page_is_ignored_and_logged(
    body: bytes, more: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[dict[str, str]] = []
    monkeypatch.setattr(envoy_conditions.log, "warn", lambda _, **fields: warnings.append(fields))
    if "delay" in more:
        monkeypatch.setattr(envoy_conditions, "TIMEOUT", 0.1)
    if reason == "larger than":
        monkeypatch.setattr(envoy_conditions, "MAX_BYTES", 1000)
    assert conditions_from(body, ["edge-1"], **more, is_read=lambda: warnings) == {}
    assert [reason in item["why"] for item in warnings] == [True]


def test_admin_interface_before_the_start_causes_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[dict[str, str]] = []
    nodes: list[str] = []
    monkeypatch.setattr(envoy_conditions, "INTERVAL", 0.005)
    monkeypatch.setattr(envoy_conditions.log, "warn", lambda _, **fields: warnings.append(fields))
    looks = 0

    def started() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            assert warnings == []
            nodes.append("edge-1")
        return bool(warnings)

    asyncio.run(read(TrafficLedger(), 1, nodes, 1, started))
    assert [item["proxy"] for item in warnings] == ["edge-1"]


def test_reading_in_progress_keeps_the_addresses_of_its_fleet() -> None:
    conditions = EnvoyConditions(TrafficLedger(), lambda _: [], lambda: 0.0)
    in_progress = []
    for address in ("10.0.0.1", "10.0.0.9"):
        conditions.use_fleet(published(port=1, address_of_a=address))
        in_progress.append(conditions._places)
    first, second = ({place[0] for place in places.of("llama")} for places in in_progress)
    assert first - second == {"10.0.0.1"}
    assert second - first == {"10.0.0.9"}

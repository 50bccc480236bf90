"""The connected parts of `lbctl serve`, of which each failure has its own name in the metric."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.serve import log, wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.guard import end_tasks
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options
from lbctl.serve.state.saved import SavedState
from lbctl.serve.state.sqlite import SqliteStore
from lbctl.serve.telemetry.service import TelemetryService
from lbctl.serve.traffic.service import Traffic
from lbctl.targets.load import Loaded, load
from lbctl.xds.protocol.node_status import NodeStatus

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools: {chat: {replicas: [{address: "10.9.9.9:8000"}]}}
proxies: {edge: {kind: envoy}}
"""


async def ignore(_loaded: Loaded, _can_be_served: bool) -> None:
    """Open no endpoints for the first fleet."""


def test_a_part_that_fails_with_a_new_fleet_is_not_counted_under_the_name_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ValueError

    followers = (DriverSupervisor, Traffic, EventLog, TelemetryService)
    for follower in followers:
        monkeypatch.setattr(follower, "follow", fail)
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    fleet = load([str(path)], Diagnostics())
    assert fleet is not None
    options, nodes, metrics = Options((str(path),)), NodeStatus(), Metrics()

    async def serve() -> set[str]:
        state = SavedState(SqliteStore.open(tmp_path / "state"), log.warn)
        await state.lead(log.warn)
        endpoints = Endpoints(options, nodes, metrics)
        services, _ = await wiring.build_from(options, endpoints, metrics, nodes, state, ignore)
        await services.publisher.serve(fleet, "files")
        await services.publisher.discovery.stop()
        await state.close()
        return set(services.tasks())

    tasks = asyncio.run(asyncio.wait_for(serve(), 120))
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    failed = {item.labels["task"] for item in samples if item.name == "lbctl_task_failures_total" and item.value}
    failed -= {"xDS stream"}
    assert len(failed) == len(followers)
    assert failed.isdisjoint(tasks)


PICKED = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools:
  chat:
    balance: {algorithm: pick}
    health: {active: {http: {path: /health}}}
    replicas: [{address: "127.0.0.1:9"}]
proxies: {edge: {kind: haproxy, config: /nowhere/haproxy.cfg, admin: "unix:/nowhere/haproxy.sock"}}
"""


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_checks_no_replica(tmp_path: Path, dry_run: bool) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(PICKED)
    fleet = load([str(path)], Diagnostics())
    assert fleet is not None
    options, nodes, metrics = Options((str(path),), dry_run=dry_run), NodeStatus(), Metrics()

    async def checked() -> set[tuple[str, str]]:
        state = SavedState(SqliteStore.open(tmp_path / "state"), log.warn)
        await state.lead(log.warn)
        endpoints = Endpoints(options, nodes, metrics)
        services, _ = await wiring.build_from(options, endpoints, metrics, nodes, state, ignore)
        await services.publisher.serve(fleet, "files")
        drivers = services.guard.start("drivers", services.supervisor.run)
        while not services.supervisor.rows():
            await asyncio.sleep(0.01)
        await end_tasks([drivers])
        await services.publisher.discovery.stop()
        await state.close()
        return set(services.supervisor.checks)

    expected = set() if dry_run else {("chat", "127.0.0.1-9")}
    assert asyncio.run(asyncio.wait_for(checked(), 120)) == expected

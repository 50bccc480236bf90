"""The wired parts of `lbctl serve`: each failure has its own name in the metric."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from lbctl.runtime import log
from lbctl.runtime.guard import end_tasks
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options
from lbctl.serve.telemetry.deciding import DecisionPublisher
from lbctl.serve.telemetry.scraping import FleetScraper
from lbctl.serve.traffic.service import Traffic
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.fleets import fleet_of, load_fleet, pool
from tests.support.publishing import publish_files


def test_failed_subscriber_is_counted_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ValueError

    subscribers = (
        (DriverSupervisor, "use_fleet"),
        (Traffic, "use_fleet"),
        (EventLog, "emit_overrides"),
        (DecisionPublisher, "use_fleet"),
        (FleetScraper, "use_fleet"),
    )
    for part, method in subscribers:
        monkeypatch.setattr(part, method, fail)
    fleet = load_fleet(tmp_path, fleet_of(proxies={"edge": {"kind": "envoy"}}))
    options, nodes, metrics = Options((str(tmp_path / "fleet.yaml"),)), NodeStatus(), Metrics()

    async def serve() -> set[str]:
        state = SavedState(SqliteStore.open(tmp_path / "state"), log.warn)
        await state.lead(log.warn)
        endpoints = Endpoints(options, nodes, metrics)
        services, _ = await wiring.build_from(options, endpoints, metrics, nodes, state)
        await publish_files(services.live, fleet)
        await services.discovery.stop()
        await state.close()
        return set(services.tasks())

    tasks = asyncio.run(asyncio.wait_for(serve(), 120))
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    failed = {item.labels["task"] for item in samples if item.name == "lbctl_task_failures_total" and item.value}
    failed -= {"xDS stream"}
    assert len(failed) == len(subscribers)
    assert failed.isdisjoint(tasks)


PICKED = fleet_of(
    pool(balance={"algorithm": "pick"}, health={"active": {"http": {"path": "/health"}}}),
    proxies={"edge": {"kind": "haproxy", "config": "/nowhere/haproxy.cfg", "admin": "unix:/nowhere/haproxy.sock"}},
)


@pytest.mark.parametrize("dry_run", [True, False])
def test_dry_run_checks_no_replicas(tmp_path: Path, dry_run: bool) -> None:
    fleet = load_fleet(tmp_path, PICKED)
    options, nodes, metrics = Options((str(tmp_path / "fleet.yaml"),), dry_run=dry_run), NodeStatus(), Metrics()

    async def checked() -> set[tuple[str, str]]:
        state = SavedState(SqliteStore.open(tmp_path / "state"), log.warn)
        await state.lead(log.warn)
        endpoints = Endpoints(options, nodes, metrics)
        services, _ = await wiring.build_from(options, endpoints, metrics, nodes, state)
        await publish_files(services.live, fleet)
        drivers = services.guard.start("drivers", services.supervisor.run)
        while not services.supervisor.rows():
            await asyncio.sleep(0.01)
        await end_tasks([drivers])
        await services.discovery.stop()
        await state.close()
        return set(services.supervisor.checks)

    expected = set() if dry_run else {("pool", "a")}
    assert asyncio.run(asyncio.wait_for(checked(), 120)) == expected

"""Each proxy is driven on its own: a proxy that waits for checks does not delay the others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from lbctl.runtime.guard import Guard
from lbctl.serve.drivers import supervisor
from lbctl.serve.drivers.supervisor import DriverSupervisor
from tests.support.fleets import Fleet, fleet_of, load_fleet, pool, replica
from tests.support.publishing import Publishing


def _haproxy_and_nginx(directory: Path, silent: int) -> Fleet:
    """Return a fleet with both proxies and a health check that the port `silent` never answers."""
    check = {"active": {"timeout": "60s", "interval": "60s", "http": {"path": "/health"}}}
    reload = {"config": f"{directory}/nginx.conf", "reload": {"command": ["true"]}}
    return fleet_of(
        pool(replica(address=f"127.0.0.1:{silent}"), health=check),
        listeners={"other": {"bind": "127.0.0.1:8081"}},
        proxies={
            "ha": {"kind": "haproxy", "runtime_api": f"{directory}/haproxy.sock", "listeners": ["gateway"]},
            "ng": {"kind": "nginx", **reload, "listeners": ["other"]},
        },
    )


def test_haproxy_does_not_wait_for_the_first_checks_of_nginx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_CHECKS", 3600.0)

    async def drive(silent: int) -> None:
        fleet = load_fleet(tmp_path, _haproxy_and_nginx(tmp_path, silent))
        publishing = Publishing()
        served = await publishing.publish(fleet)
        driving = DriverSupervisor(Guard(lambda _: None), dry_run=False)
        driving.use_fleet(served)
        task = asyncio.create_task(driving.run())
        async with asyncio.timeout(30):
            while not any("haproxy.sock" in row.reason for row in driving.rows()):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publishing.end()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(drive(listener.getsockname()[1]))

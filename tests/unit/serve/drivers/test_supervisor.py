"""Each proxy is driven by itself: one that waits for checks delays no other."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.serve.drivers import supervisor
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.guard import Guard
from lbctl.serve.metrics.instruments import Metrics
from lbctl.targets.load import load

FLEET = """version: 1
listeners: {a: {bind: "127.0.0.1:8080"}, b: {bind: "127.0.0.1:8081"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools:
  chat:
    replicas: [{address: "127.0.0.1:SILENT"}]
    health: {active: {timeout: 60s, interval: 60s, http: {path: /health}}}
proxies:
  ha: {kind: haproxy, runtime_api: DIRECTORY/haproxy.sock, listeners: [a]}
  ng: {kind: nginx, config: DIRECTORY/nginx.conf, reload: {command: ["true"]}, listeners: [b]}
"""


def test_a_haproxy_does_not_wait_for_the_first_checks_of_an_nginx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_CHECKS", 3600.0)

    async def drive(silent: int) -> None:
        text = FLEET.replace("DIRECTORY", str(tmp_path)).replace("SILENT", str(silent))
        (tmp_path / "fleet.yaml").write_text(text)
        fleet = load([str(tmp_path / "fleet.yaml")], diagnostics := Diagnostics())
        assert fleet is not None, list(map(str, diagnostics))
        publisher = Publisher(Metrics(), {})
        await publisher.serve(fleet, "files")
        assert publisher.served is not None
        driving = DriverSupervisor(lambda _: None, Guard(lambda _: None), dry_run=False)
        driving.follow(publisher.served)
        task = asyncio.create_task(driving.run())
        async with asyncio.timeout(30):
            while not any("haproxy.sock" in row["reason"] for row in driving.rows()):
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publisher.discovery.stop()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(drive(listener.getsockname()[1]))

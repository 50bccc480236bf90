"""Every member, leader or not, checks the replicas of picked pools for its own picker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from lbctl.runtime.guard import end_tasks
from tests.support.fleets import fleet_text, pool, replica
from tests.support.member import ENVOY, Running, running, until
from tests.support.stores import shared_server
from tests.support.web import serving_get


def _checked_pool(port: int) -> str:
    """Return the YAML of a fleet with a picked pool whose replica is checked every 500 ms."""
    check = {"http": {"path": "/health"}, "interval": "500ms", "timeout": "500ms"}
    thresholds = {"unhealthy_threshold": 1, "healthy_threshold": 1}
    health = {"active": check | thresholds}
    checked = pool(replica(address=f"127.0.0.1:{port}"), balance={"algorithm": "pick"}, health=health)
    return fleet_text(checked, proxies=ENVOY)


class _Server:
    """A replica that answers health checks with `status`."""

    status = 200
    port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=self.status)

        async with serving_get("/health", answer) as self.port:
            yield


def _fit(member: Running) -> bool | None:
    table = member.services.picker.feed.tables.get("pool")
    return table.candidates[0].fit if table else None


@pytest.mark.slow
def test_pickers_of_all_members_follow_failed_health_checks(tmp_path: Path) -> None:
    prefix, port, server = f"test:{secrets.token_hex(4)}", shared_server("redis").port, _Server()

    async def work() -> None:
        async with server.listening():
            fleet = _checked_pool(server.port)
            async with (
                running("cp-1", tmp_path, port, prefix, fleet=fleet, lease=8) as first,
                running("cp-2", tmp_path, port, prefix, fleet=fleet, lease=8) as second,
            ):
                members = (first, second)
                tables = [item.services.guard.start("tables", item.services.picker.feed.run) for item in members]
                try:
                    await until(lambda: first.member.leads and [_fit(item) for item in members] == [True, True])
                    server.status = 503
                    await until(lambda: [_fit(item) for item in members] == [False, False])
                    await first.member.store.release()
                    await until(lambda: second.member.leads and not first.member.leads)
                    server.status = 200
                    await until(lambda: [_fit(item) for item in members] == [True, True])
                finally:
                    await end_tasks(tables)

    asyncio.run(work())

"""Each member checks the replicas of picked pools for its own picker, whoever leads."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from lbctl.serve.guard import end_tasks
from tests.support.member import Running, running, until
from tests.support.stores import shared_server
from tests.support.web import serving_get

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools:
  chat:
    balance: {algorithm: pick}
    health:
      active: {http: {path: /health}, interval: 500ms, timeout: 500ms, unhealthy_threshold: 1, healthy_threshold: 1}
    replicas: [{name: a, address: "127.0.0.1:PORT"}]
proxies: {edge: {kind: envoy}}
"""


class _Replica:
    """A replica that says what it is told to."""

    status = 200
    port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=self.status)

        async with serving_get("/health", answer) as self.port:
            yield


def _fit(member: Running) -> bool | None:
    table = member.services.picker.feed.tables.get("chat")
    return table.candidates[0].fit if table else None


@pytest.mark.slow
def test_every_member_s_picker_knows_what_fails_and_what_is_back(tmp_path: Path) -> None:
    prefix, port, replica = f"test:{secrets.token_hex(4)}", shared_server("redis").port, _Replica()

    async def work() -> None:
        async with replica.listening():
            fleet = FLEET.replace("PORT", str(replica.port))
            async with (
                running("cp-1", tmp_path, port, prefix, fleet=fleet) as first,
                running("cp-2", tmp_path, port, prefix, fleet=fleet) as second,
            ):
                members = (first, second)
                tables = [item.services.guard.start("tables", item.services.picker.feed.run) for item in members]
                try:
                    await until(lambda: first.member.leads and [_fit(item) for item in members] == [True, True])
                    replica.status = 503
                    await until(lambda: [_fit(item) for item in members] == [False, False])
                    await first.member.store.release()
                    await until(lambda: second.member.leads and not first.member.leads)
                    replica.status = 200
                    await until(lambda: [_fit(item) for item in members] == [True, True])
                finally:
                    await end_tasks(tables)

    asyncio.run(work())

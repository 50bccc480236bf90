"""A token is forwarded to the leader only over TLS or on the same machine."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from lbctl.serve.api.forwarding import LeaderAddress, NoLeaderError, forward


@pytest.mark.parametrize("url", ["http://192.0.2.1:18080", "http://leader.example:18080", "ftp://127.0.0.1/"])
def test_token_is_not_sent_in_clear_text_to_another_machine(url: str) -> None:
    request = make_mocked_request("POST", "/api/v1/overrides", headers={"authorization": "Bearer secret"})
    with pytest.raises(NoLeaderError, match="not reached by TLS"):
        asyncio.run(forward(request, LeaderAddress("cp-2", url, None)))


def test_leader_on_the_same_machine_gets_the_token() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.headers["authorization"])

    async def work() -> None:
        leader = web.Application()
        leader.router.add_post("/", answer)
        async with TestServer(leader) as server:
            target = LeaderAddress("cp-2", f"http://127.0.0.1:{server.port}", None)
            follower = web.Application()
            follower.router.add_post("/", partial(forward, target=target))
            async with TestClient(TestServer(follower)) as client:
                response = await client.post("/", headers={"authorization": "Bearer secret"})
                assert await response.text() == "Bearer secret"

    asyncio.run(asyncio.wait_for(work(), 120))

"""A write is forwarded to the leader only over TLS or on the same machine, and without the caller's token."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from lbctl.api.tokens import ApiToken, Principal
from lbctl.serve.api.forwarding import LeaderAddress, NoLeaderError, forward
from lbctl.serve.ha.requests import SCHEME, MemberRequest, MemberRequests
from lbctl.store.signing import Keyring

CALLER = ApiToken(Principal("anna", "operate"), b"secret")
KEYS = Keyring("lbctl", (b"0123456789abcdef" * 2,), accepts_unsigned=False)


def leader_at(url: str) -> LeaderAddress:
    return LeaderAddress("cp-2", "cp-1", url, None, MemberRequests("cp-2", KEYS, lambda: 1000.0))


@pytest.mark.parametrize("url", ["http://192.0.2.1:18080", "http://leader.example:18080", "ftp://127.0.0.1/"])
def test_nothing_is_forwarded_in_clear_to_another_machine(url: str) -> None:
    request = make_mocked_request("POST", "/api/v1/overrides", headers={"authorization": "Bearer secret"})
    with pytest.raises(NoLeaderError, match="does not use TLS"):
        asyncio.run(forward(request, leader_at(url), CALLER))


def answer_of_leader(status: int) -> tuple[str, int, str]:
    """Forward a request, and return the `authorization` that the leader got, with the answer of the follower."""
    got: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(request.headers["authorization"])
        return web.Response(text="done", status=status)

    async def work() -> tuple[int, str]:
        leader, follower = web.Application(), web.Application()
        leader.router.add_post("/", answer)
        async with TestServer(leader) as server:
            target = leader_at(f"http://127.0.0.1:{server.port}")

            async def handle(request: web.Request) -> web.Response:
                try:
                    return await forward(request, target, CALLER)
                except NoLeaderError as error:
                    return web.Response(text=str(error), status=503)

            follower.router.add_post("/", handle)
            async with TestClient(TestServer(follower)) as client:
                response = await client.post("/", data=b"{}", headers={"authorization": "Bearer secret"})
                return response.status, await response.text()

    status, text = asyncio.run(asyncio.wait_for(work(), 120))
    return got[0], status, text


def test_leader_gets_a_signature_and_not_the_token() -> None:
    given, status, text = answer_of_leader(200)
    assert (status, text) == (200, "done")
    scheme, _, signature = given.partition(" ")
    assert scheme == SCHEME
    leader = MemberRequests("cp-1", KEYS, lambda: 1000.0)
    assert leader.verify(signature, MemberRequest("POST", "/", b"{}"), []) == ("anna", None)


def test_refusal_of_the_signature_names_the_leader() -> None:
    _, status, text = answer_of_leader(401)
    assert status == 503
    assert "the leader cp-1 rejects requests from this member" in text

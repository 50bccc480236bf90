"""Checks of pools with `health.agent`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbctl.control.check_thresholds import CheckResult
from lbctl.ir.pools import Pool
from lbctl.ir.secrets import HeaderSecret, Secrets
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.http_client import session
from lbctl.serve.health import health_check
from lbctl.serve.health.agent_reasons import first_reasons
from lbctl.serve.health.fetch import fetch, probe_of
from lbctl.serve.health.health_check import HealthChecker
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

_HOST = "127.0.0.1"


def _pool(*replicas: dict[str, Any], **keys: Any) -> Pool:
    (compiled_pool,) = compiled(fleet_text(pool(*replicas, health={"agent": {"port": 9500}}, **keys))).topology.pools
    return compiled_pool


@pytest.mark.parametrize("protocol", ["http1", "http2", "grpc"])
def test_each_agent_is_checked_without_tls_and_http2(protocol: str) -> None:
    replicas = (replica("a", "10.0.0.1:8000"), replica("b", "10.0.0.1:8001", agent_port=9502))
    agents = _pool(*replicas, protocol=protocol)
    assert agents.active is not None
    probes = [probe_of(agents, agents.active, item, None) for item in agents.replicas]
    assert [(str(probe.address), probe.h2, probe.tls) for probe in probes] == [
        ("10.0.0.1:9500", False, None),
        ("10.0.0.1:9502", False, None),
    ]


async def _answer_without_key(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status = b"401 Unauthorized" if b"authorization:" in head.lower() else b"200 OK"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


def test_agent_gets_no_key_and_no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "_SPREAD", 0.0)

    async def run() -> None:
        server = await asyncio.start_server(_answer_without_key, _HOST, 0)
        credentials = {"header": "authorization", "file": "replica-key"}
        agent = replica(address=f"{_HOST}:9", agent_port=server.sockets[0].getsockname()[1])
        checker = HealthChecker(lambda _key, _state: None, lambda _: None, Guard(lambda _: None))
        secrets = Secrets(headers={"replica-key": HeaderSecret("Bearer k-1")})
        checker.use_pools([_pool(agent, credentials=credentials, tls={"ca": "system"})], secrets)
        task = asyncio.create_task(checker.run())
        await checker.first(30)
        state = checker.states["pool", "a"]
        assert (state.at is not None, state.out, state.reason) == (True, False, "")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()

    asyncio.run(run())


async def _answer_unhealthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = b'{"state": "unhealthy", "reasons": [{"code": "xid", "message": "GPU 0 reported the fatal XID 79"}]}'
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    writer.close()


def test_failed_check_has_the_reasons_of_the_agent() -> None:
    async def run() -> None:
        server = await asyncio.start_server(_answer_unhealthy, _HOST, 0)
        agents = _pool(replica(address=f"{_HOST}:9", agent_port=server.sockets[0].getsockname()[1]))
        assert agents.active is not None
        async with session() as client:
            result = await fetch(probe_of(agents, agents.active, agents.replicas[0], None), client)
        assert result == CheckResult("status 503: GPU 0 reported the fatal XID 79")
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"reasons": [{"message": "a"}, {"message": "b"}, {"message": "c"}]}', "a; b; and 1 more"),
        (b'{"reasons": [{"message": "\\u001b[2J"}]}', r"\x1b[2J"),
        (b'{"reasons": [{"message": "%s"}]}' % (b"x" * 500), f"{'x' * 120}…"),
        (b'{"reasons": [{"message": 1}]}', ""),
        (b'{"reasons": "a"}', ""),
        (b"[" * 2_000, ""),
        (b"Service Unavailable", ""),
        (b"", ""),
    ],
)
def test_reasons_of_an_agent_are_bounded(body: bytes, shown: str) -> None:
    assert first_reasons(body) == shown

"""The checks that lbctl itself makes: connections to all replicas, and active checks that no proxy reports."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, PoolTls, Replica
from lbctl.ir.secrets import HeaderSecret, Secrets
from lbctl.runtime.guard import Guard
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.health import health_check
from lbctl.serve.traffic import replica_checks
from lbctl.serve.traffic.replica_checks import Connections, ReplicaChecks, unreported
from tests.support.fleet import compiled, reading
from tests.support.fleets import fleet_text, pool, replica
from tests.support.processes.ports import free_port

HOST = "127.0.0.1"


def _pool(name: str, port: int, **keys: Any) -> Pool:
    return Pool(name, (Replica("a", Address(HOST, port)),), **keys)


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_connection_is_refused_after_the_replica_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_checks, "_ROUND", 0.02)
    monkeypatch.setattr(replica_checks, "_PAUSE", 0.01)
    connections, port = Connections(), free_port()
    llama, qwen = ("llama", "a"), ("qwen", "a")

    async def run() -> None:
        connections.use_pools([_pool("llama", port), _pool("qwen", port)])
        assert connections.states[llama].at is None
        task = asyncio.create_task(connections.run())
        with socket.create_server((HOST, port)):
            await _until(lambda: all(state.at is not None for state in connections.states.values()))
            assert not connections.states[llama].out
        await _until(lambda: connections.states[llama].out and connections.states[qwen].out)
        assert (connections.states[llama].reason, connections.states[llama].passed) == ("connection refused", True)
        with socket.create_server((HOST, port)):
            await _until(lambda: not connections.states[llama].out)
        await _until(lambda: connections.states[llama].out)
        connections.use_pools([_pool("llama", port)])
        assert connections.states[llama].out, "an unchanged replica keeps its state"
        assert connections.states.keys() == {llama}
        connections.use_pools([_pool("llama", free_port())])
        assert connections.states[llama].at is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_replicas_with_a_name_or_tls_are_connected_to_less_often() -> None:
    connections = Connections()
    named = Pool("named", (Replica("a", Address("gpu-1.example", 80)),))
    connections.use_pools([_pool("plain", 80), _pool("tls", 81, tls=PoolTls()), named])
    assert [target.is_spared for target in connections._targets.values()] == [False, True, True]


@pytest.mark.parametrize(
    ("proxies", "names"),
    [
        ({}, ["pool"]),
        ({"edge": {"kind": "envoy"}}, ["pool"]),
        ({"edge": {"kind": "envoy", "admin": "127.0.0.1:9901"}}, []),
        ({"edge": {"kind": "envoy", "admin": "127.0.0.1:9901", "instances": 2}}, ["pool"]),
        ({"ha": {"kind": "haproxy", "runtime_api": "/run/ha.sock"}}, []),
    ],
)
def test_pool_is_checked_where_no_proxy_reports_its_checks(proxies: dict[str, Any], names: list[str]) -> None:
    checked = pool(replica(), health={"active": {"tcp": {}}})
    text = fleet_text(checked, pools={"unchecked": pool(replica(address="127.0.0.1:10"))}, proxies=proxies)
    assert [item.name for item in unreported(compiled(text).topology)] == names


@pytest.mark.parametrize(
    ("proxies", "names"),
    [
        ({"edge": {"kind": "envoy", "admin": "127.0.0.1:9901"}}, ["pool"]),
        ({"ha": {"kind": "haproxy", "runtime_api": "/run/ha.sock"}}, []),
    ],
)
def test_agents_are_asked_for_the_reason_of_envoys(proxies: dict[str, Any], names: list[str]) -> None:
    text = fleet_text(pool(replica(), health={"agent": {"port": 9500}}), proxies=proxies)
    assert [item.name for item in unreported(compiled(text).topology)] == names


async def _answer_with_key(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status = b"200 OK" if b"authorization: bearer k-1\r\n" in head.lower() else b"401 Unauthorized"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


def test_check_of_an_unreported_pool_has_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "_SPREAD", 0.0)

    async def run() -> None:
        server = await asyncio.start_server(_answer_with_key, HOST, 0)
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        credentials = {"header": "authorization", "file": "replica-key"}
        text = fleet_text(
            pool(replica(address=address), health={"active": {"http": {"path": "/"}}}, credentials=credentials),
            proxies={"edge": {"kind": "envoy", "instances": 2}},
        )
        secrets = Secrets(headers={"replica-key": HeaderSecret("Bearer k-1")})
        whole = SimpleNamespace(topology=compiled(text).topology, secrets=secrets)
        served = SimpleNamespace(composed=SimpleNamespace(whole=whole), loaded=SimpleNamespace(source=reading(text)[0]))
        checks, key = ReplicaChecks(Guard()), ("pool", "a")
        checks.use_fleet(cast(PublishedFleet, served))
        task = asyncio.create_task(checks.tasks()["checks of unreported pools"]())
        await _until(lambda: checks.checks[key].at is not None)
        assert (checks.checks[key].out, checks.checks[key].reason) == (False, "")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()

    asyncio.run(run())

"""What lbctl checks of replicas by itself: connections to all, and the checks that no proxy reports."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, PoolTls, Replica
from lbctl.serve.traffic import replica_checks
from lbctl.serve.traffic.replica_checks import Connections, unreported
from tests.support.fleet import compiled
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
        connections.follow([_pool("llama", port), _pool("qwen", port)])
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
        connections.follow([_pool("llama", port)])
        assert connections.states[llama].out, "an unchanged replica keeps its state"
        assert connections.states.keys() == {llama}
        connections.follow([_pool("llama", free_port())])
        assert connections.states[llama].at is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_replicas_with_a_name_or_tls_are_connected_to_less_often() -> None:
    connections = Connections()
    named = Pool("named", (Replica("a", Address("gpu-1.example", 80)),))
    connections.follow([_pool("plain", 80), _pool("tls", 81, tls=PoolTls()), named])
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

"""Active checks that lbctl does itself: real replicas go out and come back, and nginx gives them nothing meanwhile."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import ActiveCheck, GrpcCheck, HttpCheck, Pool, PoolTls, Replica, TcpCheck
from lbctl.serve.health.health_check import HealthChecker, Key
from lbctl.serve.health.thresholds import CheckState
from tests.support.processes import background
from tests.support.processes.certs import Authority, server_context
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.grpc_replica import GrpcReplica, grpc_replicas
from tests.support.processes.nginx_driver import driving
from tests.support.processes.replicas import Replica as Server
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_HTTP = HttpCheck()


def _pool(members: list[Server] | list[GrpcReplica], probe: Any = _HTTP, **keys: Any) -> Pool:
    check = ActiveCheck(probe, keys.pop("port", None), 200, 1000, 10.0, 2, 2)
    listed = tuple(Replica(each.name, Address("127.0.0.1", each.port)) for each in members)
    return Pool("pool", listed, active=check, **keys)


class _Probing:
    """A prober in the background."""

    def __init__(self, locate: Callable[[str], Path | None]) -> None:
        self.changes: list[tuple[Key, CheckState]] = []
        self.prober = HealthChecker(lambda key, state: self.changes.append((key, state)), locate)

    def follow(self, *pools: Pool) -> None:
        async def follow() -> None:
            self.prober.follow(pools)

        background.wait(follow())

    def first(self) -> None:
        background.wait(self.prober.first(30.0))

    @property
    def out(self) -> frozenset[str]:
        return self.prober.out.get("pool", frozenset())

    def reason(self, replica: str) -> str:
        return self.prober.states["pool", replica].reason


@contextmanager
def _probing(*pools: Pool, locate: Callable[[str], Path | None] = Path) -> Iterator[_Probing]:
    probing = _Probing(locate)
    probing.follow(*pools)
    running = background.start(probing.prober.run())
    try:
        yield probing
        assert not running.done() or running.result() is None
    finally:
        running.cancel()


def test_a_wedged_replica_gets_nothing_from_nginx_until_it_is_well() -> None:
    """It takes connections and answers nothing: nginx alone would send it every second request."""
    with replicas("a", "b") as (a, b):
        fleet = fleet_of(pool_of([a, b], balance={"algorithm": "round_robin"}))
        with driving(fleet) as site, _probing(_pool([a, b])) as probing:
            assert site.converge(fleet).outcome == "applied"
            probing.first()
            assert probing.out == frozenset()
            b.behave(health=500, delay=20.0)
            eventually(lambda: probing.out == {"b"})
            assert site.converge(fleet, drained=probing.out).outcome == "applied"
            assert site.load(40, 4).by_replica == {"a": 40}
            b.behave(health=200, delay=0.0)
            eventually(lambda: probing.out == frozenset())
            assert site.converge(fleet, drained=probing.out).outcome == "applied"
            assert set(site.load(40, 4).by_replica) == {"a", "b"}
    assert [(key[1], state.out) for key, state in probing.changes] == [("b", True), ("b", False)]


def test_all_may_be_out_at_once_and_the_reason_is_told() -> None:
    with replicas("a", "b", "c") as (a, b, c), _probing(_pool([a, b, c])) as probing:
        probing.first()
        a.behave(health=503)
        b.refuse()
        c.behave(health=302)
        eventually(lambda: probing.out == {"a", "b", "c"})
        assert (probing.reason("a"), probing.reason("c")) == ("status 503", "status 302")
        assert probing.reason("b") == "connection refused"


def test_a_replica_that_is_down_at_the_start_is_known_with_the_first_probe() -> None:
    with replicas("a", "b") as (a, b):
        b.refuse()
        with _probing(_pool([a, b])) as probing:
            probing.first()
            assert probing.out == {"b"}


def test_a_replica_that_joins_is_out_until_it_answers() -> None:
    with replicas("a", "b") as (a, b), _probing(_pool([a])) as probing:
        probing.first()
        b.behave(health=503)
        probing.follow(_pool([a, b]))
        assert probing.out == {"b"}
        time.sleep(1)
        assert probing.out == {"b"}
        b.behave(health=200)
        eventually(lambda: probing.out == frozenset())
        probing.follow(_pool([a]))
        checks = b.checks
        time.sleep(0.6)
        assert b.checks == checks


def test_a_check_sees_statuses_body_host_and_port() -> None:
    probe = HttpCheck("/health", "models.internal", (200, 204), "ready")
    with replicas("a", "probe") as (a, other), _probing(_pool([a], probe, port=other.port)) as probing:
        other.behave(health=204, health_body="model ready")
        probing.first()
        other.behave(health_body="loading")
        eventually(lambda: probing.out == {"a"})
        assert probing.reason("a") == "the body does not contain 'ready'"
        assert a.checks == 0
        assert {(seen.path, seen.header("host")) for seen in other.checked} == {("/health", "models.internal")}


def test_a_slow_replica_delays_nobody_and_is_out() -> None:
    with replicas("a") as (a,):
        slow = Replica("slow", Address("127.0.0.1", a.port))
        silent = _Silent()
        try:
            pool = _pool([a])
            members = (*pool.replicas, Replica("silent", Address("127.0.0.1", silent.port)), slow)
            with _probing(Pool("pool", members, active=pool.active)) as probing:
                eventually(lambda: probing.out == {"silent"})
                assert probing.reason("silent") == "no answer within 1 s"
                silent.forget()
                before = a.checks
                eventually(lambda: a.checks - before >= 15)
                assert silent.connections < 10, "15, where each check waits for the other"
        finally:
            silent.close()


@pytest.mark.parametrize("service", ["", "rerank.v1.Reranker", "a" * 300], ids=["", "named", "long"])
def test_the_health_service_of_grpc_is_asked(service: str) -> None:
    with grpc_replicas("a") as (a,), _probing(_pool([a], GrpcCheck(service), protocol="grpc")) as probing:
        probing.first()
        assert probing.out == frozenset()
        encoded = service.encode()
        size = bytes([len(encoded)]) if len(encoded) < 128 else bytes([len(encoded) & 127 | 128, len(encoded) >> 7])
        assert set(a.asked) == {b"\x0a" + size + encoded if encoded else b""}
        a.behave(serving=False)
        eventually(lambda: probing.out == {"a"})
        assert probing.reason("a") == "the health service says that it does not serve"
        a.behave(serving=True)
        eventually(lambda: probing.out == frozenset())
        a.refuse()
        eventually(lambda: probing.out == {"a"})


def test_a_replica_without_a_health_service_or_without_grpc_is_out() -> None:
    with replicas("a") as (a,), _probing(_pool([a], GrpcCheck(), protocol="grpc")) as probing:
        eventually(lambda: probing.out == {"a"})
        assert probing.reason("a") == "it speaks HTTP/1.1 alone"


def test_tcp_asks_for_a_connection_alone() -> None:
    with replicas("a") as (a,), _probing(_pool([a], TcpCheck())) as probing:
        a.behave(health=500)
        probing.first()
        time.sleep(0.6)
        assert probing.out == frozenset()
        a.refuse()
        eventually(lambda: probing.out == {"a"})


@pytest.mark.parametrize("probe", [_HTTP, TcpCheck()], ids=["http", "tcp"])
def test_tls_is_that_of_the_pool(probe: Any, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    mine, name = authority.issue("gateway"), "replica.internal"
    context = server_context(authority.issue(name), client_ca=authority.ca)
    mutual = {"certificate": str(mine.certificate), "key": str(mine.key)}
    with replicas("a", tls=context) as (a,):
        for told, out in [
            (PoolTls(str(authority.ca), name, **mutual), False),
            (PoolTls(None, name, **mutual), False),
            (PoolTls(str(other.ca), name, **mutual), True),
            (PoolTls(str(authority.ca), "another.internal", **mutual), True),
        ]:
            with _probing(_pool([a], probe, tls=told)) as probing:
                probing.first()
                assert (probing.out == {"a"}) is out, (told, probing.prober.states)


def test_a_port_of_its_own_is_asked_without_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    served = server_context(authority.issue("replica.internal"))
    told = PoolTls(str(authority.ca), "replica.internal")
    with (
        replicas("a", tls=served) as (a,),
        replicas("health") as (health,),
        _probing(_pool([a], tls=told, port=health.port)) as probing,
    ):
        probing.first()
        assert (probing.out, a.checks, health.checks > 0) == (frozenset(), 0, True)


def test_grpc_is_asked_over_tls_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    told = PoolTls(str(authority.ca), "replica.internal")
    with (
        grpc_replicas("a", tls=authority.issue("replica.internal")) as (a,),
        _probing(_pool([a], GrpcCheck(), protocol="grpc", tls=told)) as probing,
    ):
        probing.first()
        assert (probing.out, a.checks > 0) == (frozenset(), True)


def test_files_of_ours_that_are_missing_are_no_fault_of_the_replica() -> None:
    told = PoolTls("tls/none.crt", "replica.internal")
    with replicas("a") as (a,), _probing(_pool([a], tls=told), locate=lambda _: None) as probing:
        time.sleep(0.6)
        assert probing.out == frozenset()
        assert probing.prober.problems == {"pool": "tls/none.crt: there is no such file"}


class _Silent:
    """Takes connections and says nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        self._forgotten = 0

    @property
    def connections(self) -> int:
        """Those that have come since `forget`."""
        with suppress(BlockingIOError):
            while True:
                self._taken.append(self._listener.accept()[0])
        return len(self._taken) - self._forgotten

    def forget(self) -> None:
        self._forgotten += self.connections

    def close(self) -> None:
        self._listener.close()
        for connection in self._taken:
            connection.close()

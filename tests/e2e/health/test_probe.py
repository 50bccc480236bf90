"""Active checks by lbctl: real replicas fail and recover, and nginx sends them nothing in the meantime."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lbctl.control.check_thresholds import CheckState
from lbctl.ir.address import Address
from lbctl.ir.pools import ActiveCheck, GrpcCheck, HttpCheck, Pool, PoolTls, Replica, TcpCheck
from lbctl.serve.health.health_check import HealthChecker, Key
from tests.support.processes import background
from tests.support.processes.certs import Authority, server_context
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.grpc_replica import GrpcReplica, grpc_replicas
from tests.support.processes.nginx_driver import driving
from tests.support.processes.replicas import Replica as Server
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import at_rest, eventually

_HTTP = HttpCheck()


def _pool(members: list[Server] | list[GrpcReplica], probe: Any = _HTTP, **keys: Any) -> Pool:
    check = ActiveCheck(probe, keys.pop("port", None), 200, keys.pop("timeout", 20_000), 10.0, 2, 2)
    listed = tuple(Replica(each.name, Address("127.0.0.1", each.port)) for each in members)
    return Pool("pool", listed, active=check, **keys)


class _RunningChecker:
    """A health checker in the background."""

    def __init__(self, locate: Callable[[str], Path | None]) -> None:
        self.changes: list[tuple[Key, CheckState]] = []
        self.prober = HealthChecker(lambda key, state: self.changes.append((key, state)), locate)

    def use_pools(self, *pools: Pool) -> None:
        async def use_pools() -> None:
            self.prober.use_pools(pools)

        background.wait(use_pools())

    def first(self) -> None:
        background.wait(self.prober.first(30.0))

    @property
    def out(self) -> frozenset[str]:
        return self.prober.out.get("pool", frozenset())

    def reason(self, replica: str) -> str:
        return self.prober.states["pool", replica].reason


@contextmanager
def _running_checker(*pools: Pool, locate: Callable[[str], Path | None] = Path) -> Iterator[_RunningChecker]:
    checker = _RunningChecker(locate)
    checker.use_pools(*pools)
    task = background.start(checker.prober.run())
    try:
        yield checker
        assert not task.done() or task.result() is None
    finally:
        task.cancel()


def test_nginx_skips_a_wedged_replica_until_it_recovers() -> None:
    """The replica accepts connections and does not answer; nginx alone would send it every second request."""
    with replicas("a", "b") as (a, b):
        fleet = fleet_of(pool_of([a, b], balance={"algorithm": "round_robin"}))
        with driving(fleet) as site, _running_checker(_pool([a, b])) as checker:
            assert site.converge(fleet).outcome == "applied"
            checker.first()
            assert checker.out == frozenset()
            b.behave(health=500, delay=20.0)
            eventually(lambda: checker.out == {"b"})
            assert site.converge(fleet, drained=checker.out).outcome == "applied"
            assert site.load(40, 4).by_replica == {"a": 40}
            b.behave(health=200, delay=0.0)
            eventually(lambda: checker.out == frozenset())
            assert site.converge(fleet, drained=checker.out).outcome == "applied"
            assert set(site.load(40, 4).by_replica) == {"a", "b"}
    assert [(key[1], state.out) for key, state in checker.changes] == [("b", True), ("b", False)]


def test_all_replicas_may_fail_with_their_reasons() -> None:
    with replicas("a", "b", "c") as (a, b, c), _running_checker(_pool([a, b, c])) as checker:
        checker.first()
        a.behave(health=503)
        b.refuse()
        c.behave(health=302)
        eventually(lambda: checker.out == {"a", "b", "c"})
        assert (checker.reason("a"), checker.reason("c")) == ("status 503", "status 302")
        assert checker.reason("b") == "connection refused"


def test_first_check_detects_a_replica_that_is_down() -> None:
    with replicas("a", "b") as (a, b):
        b.refuse()
        with _running_checker(_pool([a, b])) as checker:
            checker.first()
            assert checker.out == {"b"}


def test_added_replica_is_out_until_its_check_passes() -> None:
    with replicas("a", "b") as (a, b), _running_checker(_pool([a])) as checker:
        checker.first()
        b.behave(health=503)
        checker.use_pools(_pool([a, b]))
        assert checker.out == {"b"}
        time.sleep(1)
        assert checker.out == {"b"}
        b.behave(health=200)
        eventually(lambda: checker.out == frozenset())
        checker.use_pools(_pool([a]))
        checks = at_rest(lambda: b.checks)  # a check may be in progress
        time.sleep(0.6)
        assert b.checks == checks


def test_check_uses_status_body_host_and_port() -> None:
    probe = HttpCheck("/health", "models.internal", (200, 204), "ready")
    with replicas("a", "probe") as (a, other), _running_checker(_pool([a], probe, port=other.port)) as checker:
        other.behave(health=204, health_body="model ready")
        checker.first()
        other.behave(health_body="loading")
        eventually(lambda: checker.out == {"a"})
        assert checker.reason("a") == "the body does not contain 'ready'"
        assert a.checks == 0
        assert {(seen.path, seen.header("host")) for seen in other.checked} == {("/health", "models.internal")}


def test_silent_replica_fails_without_delaying_other_checks() -> None:
    with replicas("a") as (a,):
        slow = Replica("slow", Address("127.0.0.1", a.port))
        silent = _Silent()
        try:
            pool = _pool([a], timeout=1000)
            members = (*pool.replicas, Replica("silent", Address("127.0.0.1", silent.port)), slow)
            with _running_checker(Pool("pool", members, active=pool.active)) as checker:
                eventually(lambda: checker.out == {"silent"})
                assert checker.reason("silent") == "no response within 1 s"
                silent.forget()
                before = a.checks
                eventually(lambda: a.checks - before >= 15)
                assert silent.connections < 10, "15, where each check waits for the other"
        finally:
            silent.close()


@pytest.mark.parametrize("service", ["", "rerank.v1.Reranker", "a" * 300], ids=["", "named", "long"])
def test_grpc_check_follows_the_health_service(service: str) -> None:
    with grpc_replicas("a") as (a,), _running_checker(_pool([a], GrpcCheck(service), protocol="grpc")) as checker:
        checker.first()
        assert checker.out == frozenset()
        encoded = service.encode()
        size = bytes([len(encoded)]) if len(encoded) < 128 else bytes([len(encoded) & 127 | 128, len(encoded) >> 7])
        assert set(a.asked) == {b"\x0a" + size + encoded if encoded else b""}
        a.behave(serving=False)
        eventually(lambda: checker.out == {"a"})
        assert checker.reason("a") == "the health service reports NOT_SERVING"
        a.behave(serving=True)
        eventually(lambda: checker.out == frozenset())
        a.refuse()
        eventually(lambda: checker.out == {"a"})


def test_replica_without_grpc_fails_its_grpc_check() -> None:
    with replicas("a") as (a,), _running_checker(_pool([a], GrpcCheck(), protocol="grpc")) as checker:
        eventually(lambda: checker.out == {"a"})
        assert checker.reason("a") == "it supports only HTTP/1.1"


def test_tcp_check_needs_only_a_connection() -> None:
    with replicas("a") as (a,), _running_checker(_pool([a], TcpCheck())) as checker:
        a.behave(health=500)
        checker.first()
        time.sleep(0.6)
        assert checker.out == frozenset()
        a.refuse()
        eventually(lambda: checker.out == {"a"})


@pytest.mark.parametrize("probe", [_HTTP, TcpCheck()], ids=["http", "tcp"])
def test_checks_use_the_tls_settings_of_the_pool(probe: Any, tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    mine, name = authority.issue("gateway"), "replica.internal"
    context = server_context(authority.issue(name), client_ca=authority.ca)
    mutual = {"certificate": str(mine.certificate), "key": str(mine.key)}
    with replicas("a", tls=context) as (a,):
        for tls, out in [
            (PoolTls(str(authority.ca), name, **mutual), False),
            (PoolTls(None, name, **mutual), False),
            (PoolTls(str(other.ca), name, **mutual), True),
            (PoolTls(str(authority.ca), "another.internal", **mutual), True),
        ]:
            with _running_checker(_pool([a], probe, tls=tls)) as checker:
                checker.first()
                assert (checker.out == {"a"}) is out, (tls, checker.prober.states)


def test_separate_health_port_is_checked_without_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    served = server_context(authority.issue("replica.internal"))
    tls = PoolTls(str(authority.ca), "replica.internal")
    with (
        replicas("a", tls=served) as (a,),
        replicas("health") as (health,),
        _running_checker(_pool([a], tls=tls, port=health.port)) as checker,
    ):
        checker.first()
        assert (checker.out, a.checks, health.checks > 0) == (frozenset(), 0, True)


def test_grpc_check_uses_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = PoolTls(str(authority.ca), "replica.internal")
    with (
        grpc_replicas("a", tls=authority.issue("replica.internal")) as (a,),
        _running_checker(_pool([a], GrpcCheck(), protocol="grpc", tls=tls)) as checker,
    ):
        checker.first()
        assert (checker.out, a.checks > 0) == (frozenset(), True)


def test_missing_tls_files_do_not_fail_the_replica() -> None:
    tls = PoolTls("tls/none.crt", "replica.internal")
    with replicas("a") as (a,), _running_checker(_pool([a], tls=tls), locate=lambda _: None) as checker:
        eventually(lambda: checker.prober.problems == {"pool": "tls/none.crt: the file does not exist"})
        time.sleep(0.6)
        assert checker.out == frozenset()


class _Silent:
    """A server that accepts connections and does not answer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        self._forgotten = 0

    @property
    def connections(self) -> int:
        """Return the number of connections since the last `forget`."""
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

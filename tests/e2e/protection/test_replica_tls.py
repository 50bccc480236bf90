"""TLS to the replicas: their certificate must come from the authority that was named and hold the name."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, Pair, server_context
from tests.support.processes.checks import OFTEN
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.grpc_replica import grpc_replicas
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_NAME = "embedder.internal"


class _Site:
    """Two authorities of the same name; what the fleet names as files lies in `files`."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.other = Authority(directory / "one"), Authority(directory / "two")
        client = self.authority.issue("gateway")
        self.files = {
            "tls/ca.crt": self.authority.ca.read_bytes(),
            "tls/client.crt": client.certificate.read_bytes(),
            "tls/client.key": client.key.read_bytes(),
        }

    def ask(self, kind: Kind, replica: Replica, **tls: Any) -> Response:
        with running(kind, _fleet(replica, **tls), files=self.files) as gateway:
            return gateway.post("/v1/embeddings")


def _fleet(replica: Replica, **tls: Any) -> Fleet:
    return fleet_of(pool_of([replica], tls={"ca": "tls/ca.crt", "server_name": _NAME, **tls}))


def _is_503(answer: Response) -> bool:
    return (answer.status, answer.header("content-type"), answer.replica) == (503, "application/json", None)


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    return _Site(tmp_path)


def test_a_replica_with_the_right_certificate_serves_and_is_told_its_name(kind: Kind, site: _Site) -> None:
    context, told = server_context(site.authority.issue(_NAME)), []
    context.sni_callback = lambda _, name, __: told.append(name)  # type: ignore[assignment]
    with replicas("a", tls=context) as (a,):
        assert site.ask(kind, a).replica == "a"
    assert set(told) == {_NAME}


def test_another_authority_is_a_503(kind: Kind, site: _Site) -> None:
    with replicas("a", tls=server_context(site.other.issue(_NAME))) as (a,):
        assert _is_503(site.ask(kind, a))
    assert a.requests == 0


def test_another_name_is_a_503(kind: Kind, site: _Site) -> None:
    with replicas("a", tls=server_context(site.authority.issue("other.internal"))) as (a,):
        assert _is_503(site.ask(kind, a))
    assert a.requests == 0


def test_a_replica_without_tls_is_a_503(kind: Kind, site: _Site) -> None:
    with replicas("a") as (a,):
        assert _is_503(site.ask(kind, a))
    assert a.requests == 0


def test_a_replica_with_a_bad_certificate_is_left_for_a_good_one(kind: Kind, site: _Site) -> None:
    good, bad = server_context(site.authority.issue(_NAME)), server_context(site.other.issue(_NAME))
    with replicas("a", tls=good) as (a,), replicas("b", tls=bad) as (b,):
        pool = pool_of([a, b], tls={"ca": "tls/ca.crt", "server_name": _NAME})
        with running(kind, fleet_of(pool), files=site.files) as gateway:
            load = gateway.load(20, 2)
    load.assert_no_failure()
    assert (load.by_replica, b.requests) == ({"a": 20}, 0)


def test_without_an_authority_any_certificate_will_do(kind: Kind, site: _Site) -> None:
    any_certificate = server_context(site.other.issue("other.internal"))
    with (
        replicas("a", tls=any_certificate) as (a,),
        running(kind, fleet_of(pool_of([a], tls={})), files=site.files) as gateway,
    ):
        assert gateway.get().ok


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "not shown"])
def test_a_replica_may_want_a_certificate(kind: Kind, site: _Site, shown: bool) -> None:
    context = server_context(site.authority.issue(_NAME), client_ca=site.authority.ca)
    keys = {"certificate": "tls/client.crt", "key": "tls/client.key"} if shown else {}
    with replicas("a", tls=context) as (a,):
        answer = site.ask(kind, a, **keys)
    assert (answer.ok, a.requests) == (shown, int(shown))
    assert shown or answer.status in (502, 503)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
@pytest.mark.parametrize("trusted", [True, False], ids=["right", "wrong authority"])
def test_grpc_replicas_by_tls(kind: Kind, site: _Site, trusted: bool) -> None:
    with grpc_replicas("a", tls=_issued(site, trusted)) as (a,):
        pool = pool_of([a], protocol="grpc", tls={"ca": "tls/ca.crt", "server_name": _NAME})
        with running(kind, fleet_of(pool), files=site.files) as gateway:
            reply = gateway.grpc("/s.S/Echo", b"hello")
    assert (reply.code, a.requests) == (("OK", 1) if trusted else ("UNAVAILABLE", 0))


def _issued(site: _Site, trusted: bool) -> Pair:
    return (site.authority if trusted else site.other).issue(_NAME)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_checks_speak_tls_too(kind: Kind, site: _Site) -> None:
    check = {"http": {"path": "/health"}, **OFTEN}
    with replicas("a", tls=server_context(site.authority.issue(_NAME))) as (a,):
        pool = pool_of([a], tls={"ca": "tls/ca.crt", "server_name": _NAME}, health={"active": check})
        with running(kind, fleet_of(pool), files=site.files) as gateway:
            eventually(lambda: a.checks > 2)
            assert gateway.get().ok


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_a_health_port_of_its_own_is_asked_without_tls_and_requests_never_are(kind: Kind, site: _Site) -> None:
    with replicas("a", tls=server_context(site.authority.issue(_NAME))) as (a,), replicas("health") as (health,):
        check = {"http": {"path": "/health"}, "port": health.port, **OFTEN}
        pool = pool_of([a], tls={"ca": "tls/ca.crt", "server_name": _NAME}, health={"active": check})
        with running(kind, fleet_of(pool), files=site.files) as gateway:
            eventually(lambda: health.checks > 2)
            assert (gateway.get().replica, a.checks, health.requests) == ("a", 0, 0)
            health.behave(health=503)
            eventually(lambda: _is_503(gateway.get()))


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_a_grpc_health_port_of_its_own_too(kind: Kind, site: _Site) -> None:
    with grpc_replicas("a", tls=site.authority.issue(_NAME)) as (a,), grpc_replicas("health") as (health,):
        check = {"grpc": {"service": ""}, "port": health.port, **OFTEN}
        tls = {"ca": "tls/ca.crt", "server_name": _NAME}
        pool = pool_of([a], protocol="grpc", tls=tls, health={"active": check})
        with running(kind, fleet_of(pool, listener={"http2": True}), files=site.files) as gateway:
            eventually(lambda: health.checks > 2)
            assert gateway.grpc("/a.B/C", b"x").replica == "a"
            assert (a.checks, health.requests) == (0, 0)
            health.behave(serving=False)
            eventually(lambda: gateway.grpc("/a.B/C", b"x").code == "UNAVAILABLE")


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_a_health_port_that_is_the_replicas_own_is_asked_by_tls(kind: Kind, site: _Site) -> None:
    with replicas("a", tls=server_context(site.authority.issue(_NAME))) as (a,):
        check = {"http": {"path": "/health"}, "port": a.port, **OFTEN}
        pool = pool_of([a], tls={"ca": "tls/ca.crt", "server_name": _NAME}, health={"active": check})
        with running(kind, fleet_of(pool), files=site.files) as gateway:
            eventually(lambda: a.checks > 2)
            assert gateway.get().ok


def test_the_least_version_is_1_2(kind: Kind, site: _Site) -> None:
    old = server_context(site.authority.issue(_NAME))
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with replicas("a", tls=old) as (a,):
        assert _is_503(site.ask(kind, a))

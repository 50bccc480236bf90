"""TLS to the replicas: their certificate must come from the configured CA and contain the configured name."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.certs import Authority, server_context
from tests.support.processes.checks import OFTEN
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.grpc_replica import grpc_replicas
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_NAME = "embedder.internal"
_TLS = {"ca": "tls/ca.crt", "server_name": _NAME}


class _Pki:
    """Two CAs with the same name. `files` contains the first and a client certificate, for the fleet."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.other = Authority(directory / "one"), Authority(directory / "two")
        client = self.authority.issue("gateway")
        self.files = {
            "tls/ca.crt": self.authority.ca.read_bytes(),
            "tls/client.crt": client.certificate.read_bytes(),
            "tls/client.key": client.key.read_bytes(),
        }

    def contexts(self) -> dict[str, ssl.SSLContext | None]:
        """Return pool → the TLS settings of its replica; None for a replica without TLS."""
        old = server_context(self.authority.issue(_NAME))
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        asks_for_certificate = server_context(self.authority.issue(_NAME), client_ca=self.authority.ca)
        return {
            "good": server_context(self.authority.issue(_NAME)),
            "other-authority": server_context(self.other.issue(_NAME)),
            "other-name": server_context(self.authority.issue("other.internal")),
            "plain": None,
            "unverified": server_context(self.other.issue("other.internal")),
            "client-certificate": asks_for_certificate,
            "no-client-certificate": asks_for_certificate,
            "old-version": old,
        }


class _Gateway(NamedTuple):
    """A proxy in front of a pool for each kind of certificate. `names` are the server names that "good" received."""

    gateway: Gateway
    replicas: Mapping[str, Replica]
    names: list[str | None]

    def post(self, pool: str) -> Response:
        return self.gateway.post(f"/{pool}/v1/embeddings")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> _Pki:
    return _Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", params=KINDS)
def tls_gateway(request: pytest.FixtureRequest, pki: _Pki) -> Iterator[_Gateway]:
    contexts, names = pki.contexts(), []
    assert contexts["good"] is not None
    contexts["good"].sni_callback = lambda _, name, __: names.append(name)  # type: ignore[assignment]
    with ExitStack() as stack:
        members = {pool: stack.enter_context(Replica(pool, tls=context)) for pool, context in contexts.items()}
        bad_members = {name: members[name] for name in ("good", "other-authority")}
        pools = {pool: pool_of([replica], tls=_TLS) for pool, replica in members.items()}
        pools["unverified"]["tls"] = {}
        pools["client-certificate"]["tls"] = {**_TLS, "certificate": "tls/client.crt", "key": "tls/client.key"}
        pools["mixed"] = pool_of(list(bad_members.values()), tls=_TLS)
        gateway = stack.enter_context(running(request.param, _fleet_by_path(pools), files=pki.files))
        yield _Gateway(gateway, members, names)


def _fleet_by_path(pools: Mapping[str, Any], **listener: Any) -> Fleet:
    """Return a fleet in which requests for /POOL/… go to that pool."""
    routes = {pool: {"match": {"path_prefix": f"/{pool}/"}, "pool": pool} for pool in pools}
    return fleet_of(next(iter(pools.values())), listener=listener, routes=routes, pools=pools)


def _is_503(answer: Response) -> bool:
    return (answer.status, answer.header("content-type"), answer.replica) == (503, "application/json", None)


def test_good_certificate_is_accepted_by_server_name(tls_gateway: _Gateway) -> None:
    assert tls_gateway.post("good").replica == "good"
    assert set(tls_gateway.names) == {_NAME}


@pytest.mark.parametrize("pool", ["other-authority", "other-name", "plain", "old-version"])
def test_bad_certificate_is_a_503(tls_gateway: _Gateway, pool: str) -> None:
    assert _is_503(tls_gateway.post(pool))
    assert tls_gateway.replicas[pool].requests == 0


def test_replica_with_good_certificate_replaces_a_bad_one(tls_gateway: _Gateway) -> None:
    load = tls_gateway.gateway.load(20, 2, Request(path="/mixed/"))
    load.assert_no_failure()
    assert load.by_replica == {"good": 20}
    assert tls_gateway.replicas["other-authority"].requests == 0


def test_any_certificate_is_accepted_without_an_authority(tls_gateway: _Gateway) -> None:
    assert tls_gateway.post("unverified").replica == "unverified"


def test_replica_may_require_a_certificate(tls_gateway: _Gateway) -> None:
    assert tls_gateway.post("client-certificate").replica == "client-certificate"
    assert tls_gateway.post("no-client-certificate").status in (502, 503)
    assert tls_gateway.replicas["no-client-certificate"].requests == 0


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_grpc_replica_certificate_is_verified(kind: Kind, pki: _Pki) -> None:
    good, bad = pki.authority.issue(_NAME), pki.other.issue(_NAME)
    with grpc_replicas("good", tls=good) as (a,), grpc_replicas("bad", tls=bad) as (b,):
        pools = {"good.s": pool_of([a], protocol="grpc", tls=_TLS), "bad.s": pool_of([b], protocol="grpc", tls=_TLS)}
        with running(kind, _fleet_by_path(pools), files=pki.files) as gateway:
            codes = [gateway.grpc(f"/{pool}/Echo", b"hello").code for pool in pools]
    assert (codes, a.requests, b.requests) == (["OK", "UNAVAILABLE"], 1, 0)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_health_checks_use_tls_except_on_another_port(kind: Kind, pki: _Pki) -> None:
    """Another port is checked without TLS. Requests use the replica's port and TLS in any case."""
    pair = pki.authority.issue(_NAME)
    context = server_context(pair)
    http = {"http": {"path": "/health"}, **OFTEN}
    with (
        replicas("own", "same-port", "other-port", tls=context) as (own, same_port, other_port),
        replicas("health") as (health,),
        grpc_replicas("grpc", tls=pair) as (grpc,),
        grpc_replicas("grpc-health") as (grpc_health,),
    ):
        grpc_check = {"grpc": {"service": ""}, "port": grpc_health.port, **OFTEN}
        pools = {
            "own": pool_of([own], tls=_TLS, health={"active": http}),
            "same-port": pool_of([same_port], tls=_TLS, health={"active": {**http, "port": same_port.port}}),
            "other-port": pool_of([other_port], tls=_TLS, health={"active": {**http, "port": health.port}}),
            "grpc.s": pool_of([grpc], protocol="grpc", tls=_TLS, health={"active": grpc_check}),
        }
        with running(kind, _fleet_by_path(pools, http2=True), files=pki.files) as gateway:
            checked = (own, same_port, health, grpc_health)
            eventually(lambda: min(replica.checks for replica in checked) > 2)
            named = ["own", "same-port", "other-port"]
            eventually(lambda: [gateway.get(f"/{pool}/").replica for pool in pools][:3] == named)
            eventually(lambda: gateway.grpc("/grpc.s/Echo", b"x").replica == "grpc")
            assert [replica.checks for replica in (other_port, grpc)] == [0, 0]
            assert [replica.requests for replica in (health, grpc_health)] == [0, 0]
            health.behave(health=503)
            grpc_health.behave(serving=False)
            eventually(lambda: _is_503(gateway.get("/other-port/")))
            eventually(lambda: gateway.grpc("/grpc.s/Echo", b"x").code == "UNAVAILABLE")
            assert gateway.get("/own/").ok

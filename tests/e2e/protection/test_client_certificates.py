"""Client certificates: a required one must be valid, an optional one must be valid if it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, Pair, client_context
from tests.support.processes.client import Client
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import Gateway, fleet_of, put
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.shared import shared, shared_replicas
from tests.support.processes.waiting import eventually

_FIRST, _OTHER = "first.example.com", "other.example.com"


class _Site:
    """A listener with two certificates, the CA of its clients, and another CA."""

    def __init__(self, directory: Path) -> None:
        servers = Authority(directory / "servers", "servers")
        clients = Authority(directory / "clients", "clients")
        strangers = Authority(directory / "strangers", "clients")  # the same name, another key
        self.ca, self.clients = servers.ca, clients
        self.known, self.unknown = clients.issue("known"), strangers.issue("unknown")
        self.files = {"tls/clients.crt": clients.ca.read_bytes()}
        for stem, name in (("first", _FIRST), ("other", _OTHER)):
            pair = servers.issue(name)
            self.files[f"tls/{stem}.crt"] = pair.certificate.read_bytes()
            self.files[f"tls/{stem}.key"] = pair.key.read_bytes()

    def fleet(self, pool: list[Replica], **tls: Any) -> Fleet:
        certificates = [
            {"certificate": "tls/first.crt", "key": "tls/first.key"},
            {"certificate": "tls/other.crt", "key": "tls/other.key", "hosts": [_OTHER]},
        ]
        return fleet_of(pool, listener={"tls": {"certificates": certificates, "client_ca": "tls/clients.crt", **tls}})

    def get(self, gateway: Gateway, pair: Pair | None, name: str = _FIRST) -> Response:
        return gateway.connect("gateway", client_context(self.ca, pair), name).get("/", {"host": name})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> _Site:
    return _Site(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize("name", [_FIRST, _OTHER])
def test_required_certificate_must_be_valid(kind: Kind, site: _Site, name: str) -> None:
    fleet_keys = {"client_certificate": "required"}
    with shared_replicas("a") as (a,), shared(kind, site.fleet([a], **fleet_keys), files=site.files) as gateway:
        refused = [site.get(gateway, pair, name) for pair in (None, site.unknown)]
        assert [answer.ok for answer in refused] == [False, False]
        if kind == "nginx":
            assert [(answer.status, answer.header("content-type")) for answer in refused] == [
                (400, "application/json")
            ] * 2
            assert {answer.json["error"]["type"] for answer in refused} == {"bad_request"}
            assert all(answer.header("x-request-id") for answer in refused)
        assert a.requests == 0
        assert site.get(gateway, site.known, name).ok


@pytest.mark.parametrize("keys", [{}, {"client_certificate": "optional"}], ids=["by default", "optional"])
def test_optional_certificate_must_be_valid_if_sent(kind: Kind, site: _Site, keys: dict[str, str]) -> None:
    with shared_replicas("a") as (a,), shared(kind, site.fleet([a], **keys), files=site.files) as gateway:
        assert site.get(gateway, None).ok
        assert site.get(gateway, site.known).ok
        assert not site.get(gateway, site.unknown).ok
    assert a.requests == 2


def test_without_an_authority_no_certificate_is_requested(kind: Kind, site: _Site) -> None:
    with shared_replicas("a") as (a,):
        fleet = site.fleet([a])
        del fleet["listeners"]["gateway"]["tls"]["client_ca"]
        with shared(kind, fleet, files=site.files) as gateway:
            assert site.get(gateway, None).ok
            assert site.get(gateway, site.unknown).ok


def test_revoked_certificate_is_refused(kind: Kind, site: _Site) -> None:
    revoked = site.clients.issue("revoked")
    files = {**site.files, "tls/clients.crl": site.clients.revoke(revoked)}
    with (
        shared_replicas("a") as (a,),
        shared(kind, site.fleet([a], client_crl="tls/clients.crl"), files=files) as gateway,
    ):
        for name in (_FIRST, _OTHER):
            assert not site.get(gateway, revoked, name).ok
            assert not site.get(gateway, site.unknown, name).ok
        assert a.requests == 0
        assert site.get(gateway, site.known).ok
        assert site.get(gateway, None).ok


def test_running_proxies_follow_a_renewed_list(site: _Site) -> None:
    """One `lbctl serve` drives a HAProxy, an nginx and an Envoy; the list in the files of each is renewed."""
    revoked = site.clients.issue("revoked")
    files = {**site.files, "tls/clients.crl": site.clients.revoke(site.clients.issue("gone"))}
    with replicas("a") as (a,), _driven(site.fleet([a], client_crl="tls/clients.crl"), files) as (renew, ports):

        def accepted(pair: Pair) -> dict[str, bool]:
            clients = {kind: Client(port, client_context(site.ca, pair), _FIRST) for kind, port in ports.items()}
            return {kind: client.get("/", {"host": _FIRST}).ok for kind, client in clients.items()}

        eventually(lambda: all(accepted(revoked).values()))
        renew({"tls/clients.crl": site.clients.revoke(revoked)})
        eventually(lambda: not any(accepted(revoked).values()), pause=0.2)
        eventually(lambda: all(accepted(site.known).values()))


@contextmanager
def _driven(
    fleet: Fleet, files: dict[str, bytes]
) -> Iterator[tuple[Callable[[dict[str, bytes]], None], dict[str, int]]]:
    """Yield a function that renews files for all three proxies, and their ports."""
    with edges.haproxy(min_interval="100ms") as ha, edges.nginx(min_interval="100ms") as ng, ExitStack() as stack:
        tls = fleet["listeners"].pop("gateway")["tls"]
        sections = [driven("edge"), ha.sections, ng.sections]
        fleet["proxies"] = {name: entry for each in sections for name, entry in each["proxies"].items()}
        for each in sections:
            fleet["listeners"] |= {name: {**entry, "tls": tls} for name, entry in each["listeners"].items()}
        for edge in (ha, ng):
            put(edge.config.parent, files)
            stack.enter_context(edges.started_edge(edge, fleet))
        control = stack.enter_context(controlling(fleet, files=files))
        eventually(lambda: all(control.proxies[edge.name]["state"] == "SYNCED" for edge in (ha, ng)))
        stack.enter_context(control.envoy("edge", ["edge"], by_socket=True))

        def renew(changed: dict[str, bytes]) -> None:
            for directory in (ha.config.parent, ng.config.parent, control.files):
                put(directory, changed)

        envoy = int(fleet["listeners"]["edge"]["bind"].rpartition(":")[2])
        yield renew, {"haproxy": ha.port, "nginx": ng.port, "envoy": envoy}

"""Clients show a certificate: required ones are asked for and judged, optional ones judged where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.certs import Authority, Pair, client_context
from tests.e2e.support.fleet import Fleet, Gateway, fleet_of, running
from tests.e2e.support.http1 import Response
from tests.e2e.support.replicas import Replica, replicas

_FIRST, _OTHER = "first.example.com", "other.example.com"


class _Site:
    """A listener with two certificates, the authority of its clients, and another one."""

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

    def ask(self, gateway: Gateway, pair: Pair | None, name: str = _FIRST) -> Response:
        return gateway.connect("gateway", client_context(self.ca, pair), name).get("/", {"host": name}, timeout=5)


@pytest.fixture
def site(tmp_path: Path) -> _Site:
    return _Site(tmp_path)


@pytest.mark.parametrize("name", [_FIRST, _OTHER])
def test_a_required_certificate_must_be_shown_and_good(kind: Kind, site: _Site, name: str) -> None:
    fleet_keys = {"client_certificate": "required"}
    with replicas("a") as (a,), running(kind, site.fleet([a], **fleet_keys), files=site.files) as gateway:
        refused = [site.ask(gateway, pair, name) for pair in (None, site.unknown)]
        assert [answer.ok for answer in refused] == [False, False]
        if kind == "nginx":
            assert [(answer.status, answer.header("content-type")) for answer in refused] == [
                (400, "application/json")
            ] * 2
            assert {answer.json["error"]["type"] for answer in refused} == {"bad_request"}
            assert all(answer.header("x-request-id") for answer in refused)
        assert a.requests == 0
        assert site.ask(gateway, site.known, name).ok


@pytest.mark.parametrize("keys", [{}, {"client_certificate": "optional"}], ids=["by default", "said"])
def test_an_optional_certificate_is_judged_where_it_is_shown(kind: Kind, site: _Site, keys: dict[str, str]) -> None:
    with replicas("a") as (a,), running(kind, site.fleet([a], **keys), files=site.files) as gateway:
        assert site.ask(gateway, None).ok
        assert site.ask(gateway, site.known).ok
        assert not site.ask(gateway, site.unknown).ok
    assert a.requests == 2


def test_without_an_authority_nobody_is_asked(kind: Kind, site: _Site) -> None:
    with replicas("a") as (a,):
        fleet = site.fleet([a])
        del fleet["listeners"]["gateway"]["tls"]["client_ca"]
        with running(kind, fleet, files=site.files) as gateway:
            assert site.ask(gateway, None).ok
            assert site.ask(gateway, site.unknown).ok


def test_a_revoked_certificate_is_refused(kind: Kind, site: _Site) -> None:
    revoked = site.clients.issue("revoked")
    files = {**site.files, "tls/clients.crl": site.clients.revoke(revoked)}
    with replicas("a") as (a,), running(kind, site.fleet([a], client_crl="tls/clients.crl"), files=files) as gateway:
        for name in (_FIRST, _OTHER):
            assert not site.ask(gateway, revoked, name).ok
            assert not site.ask(gateway, site.unknown, name).ok
        assert a.requests == 0
        assert site.ask(gateway, site.known).ok
        assert site.ask(gateway, None).ok

"""TLS at a listener: SNI selects the certificate, old protocols are rejected, HTTP/2 is offered unless disabled."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import fleet_of
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica
from tests.support.processes.shared import shared, shared_replicas

_FIRST, _OTHER, _ANY = "first.example.com", "other.example.com", "*.models.example.com"


class _Site:
    """Three certificates and the listener's keys that name them."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        self.ca = authority.ca
        self.files = {}
        for stem, name in (("first", _FIRST), ("other", _OTHER), ("any", _ANY)):
            pair = authority.issue(name)
            self.files[f"tls/{stem}.crt"] = pair.certificate.read_bytes()
            self.files[f"tls/{stem}.key"] = pair.key.read_bytes()
        self.certificates = [
            {"certificate": "tls/first.crt", "key": "tls/first.key"},
            {"certificate": "tls/other.crt", "key": "tls/other.key", "hosts": [_OTHER]},
            {"certificate": "tls/any.crt", "key": "tls/any.key", "hosts": [_ANY]},
        ]

    def fleet(self, pool: list[Replica], listener: dict[str, Any] | None = None, **tls: Any) -> Fleet:
        return fleet_of(pool, listener={"tls": {"certificates": self.certificates, **tls}, **(listener or {})})

    def trust(self, *alpn: str, checked: bool = True) -> ssl.SSLContext:
        context = client_context(self.ca, alpn=alpn)
        context.check_hostname = checked
        return context


def _shown(answer: Response) -> tuple[str, ...] | None:
    return answer.peer.names if answer.peer else None


def _spoken(answer: Response) -> str | None:
    return answer.peer.alpn if answer.peer else "nothing"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> _Site:
    return _Site(tmp_path_factory.mktemp("pki"))


def test_server_name_selects_the_certificate(kind: Kind, site: _Site) -> None:
    chosen = {}
    with shared_replicas("a") as pool, shared(kind, site.fleet(pool), files=site.files) as gateway:
        for name in (_FIRST, _OTHER, "OTHER.example.com", "llama.models.example.com"):
            answer = gateway.connect("gateway", site.trust(), name).get("/", {"Host": name})
            assert answer.ok, f"{name}: {answer}"
            chosen[name] = _shown(answer)
    assert chosen == {
        _FIRST: (_FIRST,),
        _OTHER: (_OTHER,),
        "OTHER.example.com": (_OTHER,),
        "llama.models.example.com": (_ANY,),
    }


@pytest.mark.parametrize("name", ["unknown.example.org", None], ids=["unknown", "no name"])
def test_unknown_name_gets_the_first_certificate(kind: Kind, site: _Site, name: str | None) -> None:
    with shared_replicas("a") as pool, shared(kind, site.fleet(pool), files=site.files) as gateway:
        answer = gateway.connect("gateway", site.trust(checked=False), name).get()
    assert (answer.ok, _shown(answer)) == (True, (_FIRST,))


@pytest.mark.parametrize("name", [_FIRST, _OTHER])
def test_min_version_1_3_refuses_1_2(kind: Kind, site: _Site, name: str) -> None:
    old = site.trust()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with shared_replicas("a") as (a,), shared(kind, site.fleet([a], min_version="1.3"), files=site.files) as gateway:
        assert gateway.connect("gateway", old, name).get().error == "tls"
        assert a.requests == 0
        assert gateway.connect("gateway", site.trust(), name).get().ok


def test_default_min_version_is_1_2(kind: Kind, site: _Site) -> None:
    old, older = site.trust(), site.trust()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    older.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_1
    with shared_replicas("a") as (a,), shared(kind, site.fleet([a]), files=site.files) as gateway:
        assert gateway.connect("gateway", old, _FIRST).get().ok
        assert gateway.connect("gateway", older, _FIRST).get().error == "tls"
    assert a.requests == 1


def test_http2_is_offered_and_http1_is_accepted(kind: Kind, site: _Site) -> None:
    with shared_replicas("a") as pool, shared(kind, site.fleet(pool), files=site.files) as gateway:
        modern = gateway.connect("gateway", site.trust("h2", "http/1.1"), _FIRST).get()
        plain = gateway.connect("gateway", site.trust("http/1.1"), _FIRST).get()
    assert _spoken(modern) == "h2"
    assert _spoken(plain) == "http/1.1"
    assert plain.ok


def test_disabled_http2_is_not_offered(kind: Kind, site: _Site) -> None:
    with shared_replicas("a") as pool, shared(kind, site.fleet(pool, {"http2": False}), files=site.files) as gateway:
        answer = gateway.connect("gateway", site.trust("h2", "http/1.1"), _FIRST).get()
    assert answer.ok
    assert _spoken(answer) in ("http/1.1", None)


def test_tls_listener_refuses_plain_http(kind: Kind, site: _Site) -> None:
    with shared_replicas("a") as (a,), shared(kind, site.fleet([a]), files=site.files) as gateway:
        assert not gateway.connect("gateway").get().ok
    assert a.requests == 0


def test_certificate_and_key_in_one_file(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = {"tls/both.pem": authority.issue(_FIRST).bundle.read_bytes()}
    tls = {"certificates": [{"certificate": "tls/both.pem", "key": "tls/both.pem"}]}
    with shared_replicas("a") as pool, shared(kind, fleet_of(pool, listener={"tls": tls}), files=files) as gateway:
        assert gateway.connect("gateway", client_context(authority.ca), _FIRST).get().ok

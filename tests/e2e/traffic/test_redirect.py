"""A cleartext listener redirects clients to https for any request, and sends nothing to a replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.replicas import replicas

_REDIRECT = {"respond": {"redirect": "https"}}


def test_cleartext_redirects_to_https(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("a.example.com")
    files = {"tls/a.crt": pair.certificate.read_bytes(), "tls/a.key": pair.key.read_bytes()}
    listeners = {
        "clear": {"bind": bind()},
        "secure": {"bind": bind(), "tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}},
    }
    with replicas("a") as (a,):
        fleet = {
            **fleet_of([a]),
            "listeners": listeners,
            "routes": {
                "up": {"listeners": ["clear"], **_REDIRECT},
                "serve": {"listeners": ["secure"], "pool": "pool"},
            },
        }
        with running(kind, fleet, files=files, listener="clear") as gateway:
            moved = [
                gateway.request(method, "/v1?x=1", {"host": "a.example.com"}) for method in ("GET", "HEAD", "POST")
            ]
            served = gateway.connect("secure", client_context(authority.ca), "a.example.com").post("/v1?x=1")
        assert a.requests == 1
    assert [answer.status for answer in moved] == [301, 301, 308]
    for answer in moved:
        assert (answer.header("location") or "").replace(":443/", "/") == "https://a.example.com/v1?x=1"
    assert (served.replica, served.json["path"]) == ("a", "/v1?x=1")


def test_path_that_reads_as_a_host_is_refused(kind: Kind) -> None:
    with replicas("a") as (a,):
        fleet = fleet_of([a], routes={"up": {"match": {"hosts": ["a.example.com"]}, **_REDIRECT}})
        with running(kind, fleet) as gateway:
            answer = gateway.get("//evil.example/a", {"host": "a.example.com"})
    assert answer.status == 400
    assert answer.header("location") is None


@pytest.mark.parametrize("path", ["/a?next=https://evil.example", "/a%0d%0aset-cookie:x=1"])
def test_path_cannot_change_host_or_headers(kind: Kind, path: str) -> None:
    with replicas("a") as (a,):
        fleet = fleet_of([a], routes={"up": {"match": {"hosts": ["a.example.com"]}, **_REDIRECT}})
        with running(kind, fleet) as gateway:
            answer = gateway.get(path, {"host": "a.example.com"})
            assert gateway.get(path, {"host": "b.example.com"}).replica == "a"
    assert answer.status == 301
    assert (answer.header("location") or "").replace(":443/", "/").startswith("https://a.example.com/")
    assert answer.header("set-cookie") is None

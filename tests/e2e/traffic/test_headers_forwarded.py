"""A proxy forwards the address, scheme and host of the client, and clients cannot forge them."""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import Gateway, fleet_of, running
from tests.support.processes.replicas import Replica, Seen, replicas

_CLAIMED = {"X-Forwarded-For": "203.0.113.7, 198.51.100.2", "X-Forwarded-Proto": "https"}


_Start = Callable[[Kind], tuple[Gateway, Replica]]


@pytest.fixture(scope="module")
def started() -> Iterator[_Start]:
    """Start each proxy at most once, with the default settings and one replica."""
    with ExitStack() as stack:
        (replica,) = stack.enter_context(replicas("a"))
        yield functools.cache(lambda kind: (stack.enter_context(running(kind, fleet_of([replica]))), replica))


def _addresses(seen: Seen) -> list[str]:
    """Return the addresses in x-forwarded-for, with "peer" for this machine.

    Envoy may use another one of its addresses.
    """
    values = ",".join(value for name, value in seen.headers if name.lower() == "x-forwarded-for")
    return ["peer" if _is_here(address) else address for address in re.split(r"\s*,\s*", values)]


def _is_here(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def test_client_address_and_scheme_are_forwarded(started: _Start, kind: Kind) -> None:
    gateway, a = started(kind)
    gateway.get()
    assert (_addresses(a.seen[-1]), a.seen[-1].header("x-forwarded-proto")) == (["peer"], "http")


def test_https_scheme_is_forwarded(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("a.example.com")
    files = {"tls/a.crt": pair.certificate.read_bytes(), "tls/a.key": pair.key.read_bytes()}
    tls = {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}
    trust = client_context(authority.ca)
    with replicas("a") as (a,), running(kind, fleet_of([a], listener={"tls": tls}), files=files) as gateway:
        assert gateway.connect("gateway", trust, "a.example.com").get().ok
    assert a.seen[-1].header("x-forwarded-proto") == "https"


def test_peer_address_replaces_untrusted_headers(started: _Start, kind: Kind) -> None:
    gateway, a = started(kind)
    gateway.get(headers=_CLAIMED)
    assert (_addresses(a.seen[-1]), a.seen[-1].header("x-forwarded-proto")) == (["peer"], "http")


def test_trusted_balancer_sets_the_client_address(kind: Kind) -> None:
    listener = {"client_address": {"trusted": ["127.0.0.0/8", "198.51.100.0/24"]}}
    with replicas("a") as (a,), running(kind, fleet_of([a], listener=listener)) as gateway:
        gateway.get(headers=_CLAIMED)
        (line,) = gateway.access_log(1)
    assert _addresses(a.seen[-1]) == ["203.0.113.7", "198.51.100.2", "peer"]
    assert line["client"] == "203.0.113.7"


def test_untrusted_peer_cannot_set_the_client_address(kind: Kind) -> None:
    listener = {"client_address": {"trusted": ["10.0.0.0/8"]}}
    claimed = {**_CLAIMED, "X-Forwarded-Host": "evil.example.com", "X-Forwarded-Port": "1"}
    with replicas("a") as (a,), running(kind, fleet_of([a], listener=listener)) as gateway:
        gateway.get(headers=claimed)
        (line,) = gateway.access_log(1)
    seen = a.seen[-1]
    assert (_addresses(seen), seen.header("x-forwarded-proto")) == (["peer"], "http")
    assert (seen.header("x-forwarded-host"), seen.header("x-forwarded-port")) == (None, None)
    assert line["client"] == "127.0.0.1"


def test_host_is_kept(started: _Start, kind: Kind) -> None:
    gateway, a = started(kind)
    for host in ("models.example.com", "models.example.com:8443", "MODELS.example.com", "[::1]:80"):
        assert gateway.get(headers={"Host": host}).ok
        assert a.seen[-1].header("host") == host


def test_path_query_method_and_headers_are_unchanged(started: _Start, kind: Kind) -> None:
    path = "/v1/chat/completions?q=a%20b&q=%2F..%2F&empty=&flag"
    sent = {
        "Authorization": "Bearer sk-1",
        "X-Odd": 'a "quoted" \\ value; $HOME %[env(HOME)] %REQ(x)%',
        "Cookie": "a=b",
    }
    gateway, a = started(kind)
    answer = gateway.request("PUT", path, sent, b"body")
    seen = a.seen[-1]
    assert (seen.method, seen.path, seen.body, answer.ok) == ("PUT", path, b"body", True)
    assert {name: seen.header(name) for name in sent} == sent

"""A web page may not query the picker, whatever name resolves to this machine; proxies may, with any `Host` they
send."""

from __future__ import annotations

import pytest

from lbctl.ir.address import Address
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.http_api import HttpApi
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.service import PickService
from tests.unit.picker.test_service import POLICY

BIND = Address("127.0.0.1", 18002)


def _status(target: str, **headers: str) -> int:
    service = PickService()
    service.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"),)))
    request = HttpRequest("GET", target, {name: [value] for name, value in headers.items()}, b"")
    return HttpApi(service, lambda: b"page", bind=BIND).handle(request).status


@pytest.mark.parametrize("target", ["/pick/chat", "/metrics", "/health", "/ready", "/report"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:18002"},
        {"host": "127.0.0.1:18002", "origin": "http://127.0.0.1:18002"},
        {"origin": "null"},
    ],
)
def test_web_page_is_refused(target: str, headers: dict[str, str]) -> None:
    assert _status(target, **headers) == 403
    assert (_status("/envoy?path=/", **headers), _status("/envoy/wait?path=/", **headers)) == (500, 500)


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("/pick/chat", "127.0.0.1"),
        ("/pick/chat", "lb_picker"),
        ("/envoy?path=/", "api.example"),
        ("/envoy?path=/", "api.example:8080"),
        ("/envoy/wait?path=/", "api.example"),
        ("/envoy?path=/", "[::1]:18002"),
        ("/ready", "picker|lbctl"),
        ("/metrics", "localhost:18002"),
        ("/metrics", "127.0.0.1:9000"),
    ],
)
def test_proxies_and_local_clients_are_answered(target: str, host: str) -> None:
    assert _status(target, host=host) == 200


@pytest.mark.parametrize("target", ["/metrics", "/health"])
def test_what_no_proxy_asks_needs_a_name_of_this_machine(target: str) -> None:
    assert _status(target, host="evil.example") == 403
    assert _status(target) == 200

"""The most specific route wins, independent of its position in the file, and requests are forwarded unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.fleet import Gateway, bind, entry, fleet_of, running
from tests.support.processes.replicas import Replica, replicas

_MATCHES: dict[str, dict[str, Any]] = {
    "short": {"path_prefix": "/v1/"},
    "long": {"path_prefix": "/v1/chat/"},
    "regex": {"path_regex": "/v1/chat/[0-9]+"},
    "exact": {"path": "/v1/chat/7"},
    "any-method": {"path_prefix": "/m"},
    "written": {"path_prefix": "/m", "methods": ["POST", "PUT"]},
    "posted": {"path_prefix": "/only-post", "methods": ["POST"]},
    "plain": {"path_prefix": "/h"},
    "tiered": {"path": "/h/chat", "headers": {"X-Tier": 'interactive ("1" $x)'}},
    "tiered-twice": {"path": "/h/chat", "headers": {"X-Tier": 'interactive ("1" $x)', "x-kind": "b"}},
    "tiered-regex": {"path_regex": "/h/[a-z]+/[0-9]+", "headers": {"x-kind": "b"}},
    "host": {"hosts": ["api.example.com"], "path_prefix": "/"},
    "host-path": {"hosts": ["api.example.com"], "path_prefix": "/v1/chat"},
    "wildcard": {"hosts": ["*.example.com"], "path_prefix": "/"},
    "longer-wildcard": {"hosts": ["*.eu.example.com"], "path_prefix": "/"},
}
_TIER = _MATCHES["tiered"]["headers"]["X-Tier"]

_CASES: list[tuple[str, str, str, dict[str, str]]] = [
    ("exact", "GET", "/v1/chat/7", {}),
    ("exact", "GET", "/v1/chat/7?stream=true", {}),
    ("regex", "GET", "/v1/chat/78", {}),
    ("regex", "GET", "/v1/chat/78?x=/v1/chat/7", {}),
    ("long", "GET", "/v1/chat/78x", {}),
    ("long", "GET", "/v1/chat/7/", {}),
    ("long", "GET", "/v1/chat", {}),
    ("long", "GET", "/v1/chat/", {}),
    ("short", "GET", "/v1/chatter", {}),
    ("short", "GET", "/v1", {}),
    ("short", "GET", "/v1?/v1/chat/7", {}),
    ("", "GET", "/v1x", {}),
    ("", "GET", "/V1/chat", {}),
    ("", "GET", "/", {}),
    ("", "GET", "/x/v1/chat/7", {}),
    ("any-method", "GET", "/m/1", {}),
    ("written", "POST", "/m/1", {}),
    ("written", "PUT", "/m", {}),
    ("any-method", "DELETE", "/m", {}),
    ("posted", "POST", "/only-post", {}),
    ("", "GET", "/only-post", {}),
    ("tiered", "GET", "/h/chat", {"x-tier": _TIER}),
    ("tiered", "GET", "/h/chat", {"x-tier": _TIER, "x-kind": "c"}),
    ("tiered-twice", "GET", "/h/chat", {"x-kind": "b", "x-tier": _TIER}),
    ("plain", "GET", "/h/chat", {"x-kind": "b"}),
    ("plain", "GET", "/h/chat", {}),
    ("plain", "GET", "/h/chat", {"x-tier": _TIER.upper()}),
    ("plain", "GET", "/h/chat", {"x-tier": _TIER + "!"}),
    ("tiered-regex", "GET", "/h/chat/1", {"x-kind": "b"}),
    ("plain", "GET", "/h/chat/1", {"x-kind": "bb"}),
    ("host", "GET", "/v2", {"host": "api.example.com"}),
    ("host", "GET", "/v2", {"host": "API.Example.COM:8443"}),
    ("host", "GET", "/v1/chatter", {"host": "api.example.com"}),
    ("host-path", "GET", "/v1/chat/7", {"host": "api.example.com"}),
    ("wildcard", "GET", "/v1/chat/7", {"host": "other.example.com"}),
    ("wildcard", "GET", "/", {"host": "very.other.example.com"}),
    ("longer-wildcard", "GET", "/", {"host": "a.eu.example.com:80"}),
    ("wildcard", "GET", "/", {"host": "eu.example.com"}),
    ("exact", "GET", "/v1/chat/7", {"host": "example.com"}),
    ("", "GET", "/", {"host": "api.example.com.evil.net"}),
]

_UNTOUCHED = [
    "/v1/a%20b/%C3%A4/%2B+",
    "/v1/~user/(a),b;c=d:e@f!$&'*",
    "/v1/x?q=%41%20b%2Fc&x=a+b&empty=&empty&u=http://a/../b//c&%zz",
    "/v1/x?",
    "/v1/100%25",
    "/%7Eu/%2D",
]
_ESCAPED_SLASH = {"/v1/models/meta-llama%2FLlama-3.1": "/v1/models/meta-llama/Llama-3.1"}


@pytest.fixture(scope="module", params=KINDS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """Each route has a pool with one replica of the same name; the order of the routes in the file is arbitrary."""
    with replicas(*_MATCHES) as members:
        routes = {name: {"match": match, "pool": name} for name, match in _MATCHES.items()}
        pools = {replica.name: {"replicas": [entry(replica)]} for replica in members}
        fleet = {"version": 1, "listeners": {"gateway": {"bind": bind()}}, "routes": routes, "pools": pools}
        with running(request.param, fleet) as started:
            yield started


@dataclass(frozen=True, slots=True)
class _Site:
    kind: Kind
    gateway: Gateway
    replica: Replica


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest) -> Iterator[_Site]:
    """One replica and one route."""
    with replicas("a") as (replica,), running(request.param, fleet_of([replica])) as started:
        yield _Site(request.param, started, replica)


def test_most_specific_route_wins(gateway: Gateway) -> None:
    answers = [
        (gateway.request(method, path, headers), (expected, method, path, headers))
        for expected, method, path, headers in _CASES
    ]
    misrouted = [(case, answer.replica, answer.status) for answer, case in answers if (answer.replica or "") != case[0]]
    assert misrouted == []
    assert {answer.status for answer, case in answers if case[0]} == {200}


def test_request_without_a_route_is_404_in_json(gateway: Gateway) -> None:
    answers = [gateway.get("/nowhere?x=1"), gateway.post("/nowhere", b"x" * 100_000), gateway.get("/only-post")]
    for answer in answers:
        assert (answer.status, answer.header("content-type"), answer.replica) == (404, "application/json", None)
        assert answer.json == {
            "error": {"message": "no route", "type": "not_found", "param": None, "code": "not_found"}
        }


def test_encoded_path_matches_its_decoded_form(gateway: Gateway) -> None:
    assert gateway.get("/v1/chat%2F7").replica == "exact"
    assert gateway.get("/v1%2fchat/x").replica == "long"


def test_path_and_query_are_unchanged(site: _Site) -> None:
    assert [site.gateway.get(path).json["path"] for path in _UNTOUCHED] == _UNTOUCHED


def test_escaped_slash_is_kept_except_by_envoy(site: _Site) -> None:
    """Envoy forwards the path with which its routes were matched, so that no replica reads another one."""
    arrived = {path: site.gateway.get(path).json["path"] for path in _ESCAPED_SLASH}
    assert arrived == (_ESCAPED_SLASH if site.kind == "envoy" else {path: path for path in _ESCAPED_SLASH})


def test_body_and_headers_are_unchanged(site: _Site) -> None:
    body = bytes(range(256)) * 2000
    sent = {"content-type": "application/x-test", "x-odd": 'a  b; "c" $d %e', "accept": "text/event-stream"}
    site.replica.forget()
    answers = [site.gateway.post("/v1/x", body, sent, chunked=chunked) for chunked in (False, True)]
    assert [answer.status for answer in answers] == [200, 200]
    assert [seen.body == body for seen in site.replica.seen] == [True, True]
    assert all(seen.header(name) == value for seen in site.replica.seen for name, value in sent.items())

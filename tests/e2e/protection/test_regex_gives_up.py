"""If a proxy's engine gives up on an expression for a long path, the request is refused and bypasses no route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.processes.binaries import Binary, Kind
from tests.support.processes.fleet import Gateway, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.shared import shared, shared_replicas

_AUTH = {"api_keys": {"file": "keys"}, "forward_tenant": "x-tenant"}
_FILES = {"keys": "sk-abc: acme\n"}
_OPEN, _GUARDED = 299, 298
_REFUSED = (400, 414)
"""Status of a path on which the engine gave up, and of a request line that is too long."""
_MAX_PATH_BYTES = {"nginx": 8_300, "haproxy": 16_500, "haproxy-2.8": 16_500, "envoy": 16_500}
"""Length in bytes of a path that exceeds the request line of all proxies except Envoy."""
_STRIDE = 173
_AROUND = 48
"""Every length within this many bytes of the first refused one is tried."""


@dataclass(frozen=True)
class Nasty:
    """An expression and the paths that it matches: `start`, repetitions of `period`, `end`."""

    regex: str
    start: str
    period: str
    end: str = ""

    def path(self, size: int) -> str:
        """Return the longest path that has at most `size` bytes."""
        room = size - len(self.start) - len(self.end)
        return self.start + self.period * max(1, room // len(self.period)) + self.end


_NASTY = {
    "segments": Nasty("/api(/[a-z0-9]+)+", "/api", "/a"),
    "alternatives": Nasty("/models/(?:[a-z0-9]|-|/)+/infer", "/models/", "a", "/infer"),
    "nested": Nasty("/n(?:(a|b)*c?)*d", "/n", "abc", "d"),
    "lazy": Nasty("/lazy(?:a|bc)+?z", "/lazy", "abc", "z"),
    "lines": Nasty("/any(.|x)*", "/any", "yx"),
    "bounded": Nasty("/times(?:/(?:[a-z]|[0-9]){1,9}){0,9}(/[a-z0-9])*", "/times", "/b"),
    "words": Nasty("/words(?:/(?:v1|v2|models|completions))*/end", "/words", "/models", "/end"),
    "exponential": Nasty("/exp((a|b|ab)+)+", "/exp", "ab"),
}


@contextmanager
def _beside_an_open_route(name: Binary) -> Iterator[Gateway]:
    """Return routes with the proxy's own responses: one for each expression, and one for everything else."""
    routes: dict[str, Any] = {
        each: {"match": {"path_regex": item.regex}, "respond": {"status": _GUARDED, "body": ""}}
        for each, item in _NASTY.items()
    }
    routes["open"] = {"match": {"path_prefix": "/"}, "respond": {"status": _OPEN, "body": ""}}
    with shared_replicas("a") as pool:
        fleet = {**fleet_of(pool, listener={"access_log": {"format": "none"}}), "routes": routes}
        with shared(name, fleet) as gateway:
            yield gateway


def _status(gateway: Gateway, path: str) -> int:
    return gateway.get(path).status


def _first_refused(gateway: Gateway, item: Nasty, most: int) -> int:
    """Return the minimum size whose response differs from a short path's; `most` if there is none."""
    low, high = 64, most
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _status(gateway, item.path(middle)) == _GUARDED else (low, middle)
    return low


def _sizes(first: int, most: int) -> list[int]:
    near = range(max(64, first - _AROUND), min(most, first + _AROUND))
    return sorted({*range(64, most, _STRIDE), *near})


@pytest.mark.parametrize("name", ["nginx", "haproxy", "haproxy-2.8", "envoy"])
def test_no_path_length_bypasses_an_expression(name: Binary) -> None:
    with _beside_an_open_route(name) as gateway:
        for item in _NASTY.values():
            first = _first_refused(gateway, item, _MAX_PATH_BYTES[name])
            paths = [item.path(size) for size in _sizes(first, _MAX_PATH_BYTES[name])]
            load = gateway.load(len(paths), 4, lambda number, paths=paths: Request(path=paths[number]))  # type: ignore[misc]
            assert set(load.statuses) <= {_GUARDED, *_REFUSED}, (item.regex, first, load.statuses)
            assert load.statuses[_GUARDED] > 0, item.regex


@pytest.mark.parametrize("path", ["/api" + "/a" * 1000, "/api" + "/a" * 1500, "/api" + "/a" * 3900])
def test_long_path_of_a_protected_expression_needs_a_key(kind: Kind, path: str) -> None:
    with shared_replicas("a") as (a,):
        guarded = {"match": {"path_regex": "/api(/[a-z0-9]+)+"}, "pool": "pool", "auth": _AUTH}
        with shared(kind, fleet_of([a], routes={"guarded": guarded}), files=_FILES) as gateway:
            answer = gateway.get(path)
            assert answer.status == (401 if kind == "envoy" else answer.status)
            assert answer.status in (400, 401)
            assert a.requests == 0
            short = gateway.get("/api/a/b", headers={"authorization": "Bearer sk-abc"})
            assert (short.status, a.requests) == (200, 1)


def test_refusal_states_its_reason(kind: Kind) -> None:
    """Envoy's engine never gives up."""
    with _beside_an_open_route(kind) as gateway:
        answer = gateway.get(_NASTY["alternatives"].path(4000))
    if kind == "envoy":
        assert answer.status == _GUARDED
        return
    assert (answer.status, answer.header("content-type")) == (400, "application/json")
    assert answer.json == {
        "error": {
            "message": "the path is too complex to match",
            "type": "bad_request",
            "param": None,
            "code": "bad_request",
        }
    }
    assert answer.header("x-request-id")


def test_open_expression_passes_matching_paths_only(kind: Kind) -> None:
    routes: dict[str, Any] = {
        "open": {"match": {"path_regex": "/api(/[a-z0-9]+)+!"}, "respond": {"status": _OPEN, "body": ""}},
        "guarded": {"match": {"path_prefix": "/"}, "respond": {"status": _GUARDED, "body": ""}},
    }
    with shared_replicas("a") as pool, shared(kind, {**fleet_of(pool), "routes": routes}) as gateway:
        statuses = {_status(gateway, "/api" + "/a" * count) for count in range(50, 4000, 97)}
        assert _status(gateway, "/api/a/b!") == _OPEN
    assert statuses <= {_GUARDED, 400}


def test_only_requests_for_the_rule_are_refused(kind: Kind) -> None:
    """More specific rules come first; a request with another method, host or header does not evaluate the
    expression."""
    regex = "/api(/[a-z0-9]+)+"
    long = "/api" + "/a" * 2000
    answers = {"status": _GUARDED, "body": ""}
    routes: dict[str, Any] = {
        "earlier": {"match": {"path_prefix": "/", "hosts": ["a.example.com"]}, "respond": {"status": 297, "body": ""}},
        "posted": {"match": {"path_regex": regex, "methods": ["POST"]}, "respond": answers},
        "hosted": {"match": {"path_regex": regex, "hosts": ["api.example.com"]}, "respond": answers},
        "headed": {"match": {"path_regex": regex, "headers": {"x-tier": "gold"}}, "respond": answers},
        "open": {"match": {"path_prefix": "/"}, "respond": {"status": _OPEN, "body": ""}},
    }
    with shared_replicas("a") as pool, shared(kind, {**fleet_of(pool), "routes": routes}) as gateway:
        assert _status(gateway, long) == _OPEN
        assert gateway.post(long, headers={"host": "a.example.com"}).status == 297
        assert gateway.get("/api/a", headers={"x-tier": "gold"}).status == _GUARDED
        refused = [
            gateway.post(long),
            gateway.get(long, headers={"host": "api.example.com"}),
            gateway.get(long, headers={"x-tier": "gold"}),
        ]
    assert [answer.status for answer in refused] == [_GUARDED if kind == "envoy" else 400] * 3


def test_request_without_a_path_is_refused() -> None:
    with _beside_an_open_route("haproxy") as gateway:
        assert gateway.request("OPTIONS", "*").status == 400

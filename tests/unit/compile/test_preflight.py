"""Routes that allow an origin get an extra route for preflights if they would not answer these themselves."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.ir.matching import Request, matches
from lbctl.ir.topology import Topology
from tests.support.fleet import compiling
from tests.support.fleets import fleet_of, yaml_of

_ORIGIN = {"access-control-allow-origin": "*"}
_BASIC = {"auth": {"basic": {"file": "users"}}}


def _topology(*routes: dict[str, Any]) -> Topology:
    named = {f"r{index}": {"pool": "pool", **route} for index, route in enumerate(routes)}
    fleet, diagnostics = compiling(yaml_of({**fleet_of(), "routes": named}))
    assert fleet is not None, diagnostics
    return fleet.topology


def _route(match: dict[str, Any], headers: dict[str, str] = _ORIGIN, **keys: Any) -> dict[str, Any]:
    return {"match": match, "headers": {"response": {"set": headers}}, **keys}


def _taker(topology: Topology, path: str, method: str = "OPTIONS") -> str | None:
    request = Request(method, "", path)
    return next((rule.route for rule in topology.listeners[0].rules if matches(rule, request)), None)


@pytest.mark.parametrize(
    ("route", "taker"),
    [
        (_route({"path_prefix": "/v1"}, **_BASIC), "r0.OPTIONS"),
        (_route({"path": "/v1/x"}, **_BASIC), "r0.OPTIONS"),
        (_route({"path_regex": "/v1/.*", "model": ["m"]}), "r0.OPTIONS"),
        (_route({"path_prefix": "/", "methods": ["POST"]}), "r0.OPTIONS"),
        (_route({"path_prefix": "/", "headers": {"x-a": "b"}}), "r0.OPTIONS"),
        (_route({"path_prefix": "/v1"}), "r0"),
        (_route({"path_prefix": "/v1"}, {"x-a": "b"}, **_BASIC), "r0"),
        (_route({"path_prefix": "/v1", "methods": ["OPTIONS", "POST"]}, **_BASIC), "r0"),
    ],
)
def test_preflight_is_answered_where_the_route_would_not(route: dict[str, Any], taker: str) -> None:
    topology = _topology(route)
    assert _taker(topology, "/v1/x") == taker
    assert _taker(topology, "/v1/x", "GET") in ("r0", None)
    assert ("r0.OPTIONS" in {item.name for item in topology.routes}) == (taker != "r0")


def test_route_for_preflights_is_as_specific_as_its_route() -> None:
    keyed = _route({"path_prefix": "/v1"}, **_BASIC, allow_from=["10.0.0.0/8"], access_log="off")
    topology = _topology(keyed, {"match": {"path_prefix": "/v1/open"}}, {"match": {"path_prefix": "/"}})
    assert [_taker(topology, path) for path in ("/v1/x", "/v1/open", "/x")] == ["r0.OPTIONS", "r1", "r2"]
    answer = next(item for item in topology.routes if item.name == "r0.OPTIONS")
    assert (answer.allow_from, answer.logged, answer.auth) == (("10.0.0.0/8",), False, None)


def test_headers_of_the_route_replace_headers_of_the_answer() -> None:
    own = {**_ORIGIN, "access-control-allow-methods": "POST", "access-control-expose-headers": "{pool}", "x-a": "b"}
    topology = _topology(_route({"path_prefix": "/"}, own, **_BASIC))
    headers = dict(topology.routes[-1].response_headers.set)
    assert headers["access-control-allow-methods"] == "POST"
    assert set(headers) == {f"access-control-allow-{name}" for name in ("origin", "methods", "headers")}

"""Routes that bypass the client-address lists or limits of other routes.

A listener's list of addresses applies to routes without one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener, PathMatch, Rule
from lbctl.ir.pools import TokenLimit
from lbctl.ir.protected_models import refused_websockets, ways_around
from lbctl.ir.routes import Forward, Route, Share

_POOL = Forward((Share("pool", 1),))


def ways_around_two_routes(
    of_listener: tuple[str, ...] | None, one: tuple[str, ...] | None, other: tuple[str, ...] | None
) -> object:
    """Return the bypasses among two routes for the same requests; the route `model` is for one model."""
    routes = {
        "model": Route("model", _POOL, allow_from=one),
        "all": Route("all", _POOL, allow_from=other),
    }
    rules = (Rule("model", models=("llama",)), Rule("all"))
    return ways_around(Listener("public", Address("127.0.0.1", 1), allow_from=of_listener, rules=rules), routes)


@pytest.mark.parametrize(
    ("of_listener", "one", "other"),
    [(None, None, None), (("10.0.0.0/8",), None, None), (("10.0.0.0/8",), ("10.0.0.0/8",), None)],
)
def test_routes_for_the_same_clients_do_not_bypass_each_other(
    of_listener: tuple[str, ...] | None, one: tuple[str, ...] | None, other: tuple[str, ...] | None
) -> None:
    assert ways_around_two_routes(of_listener, one, other) == {}


def test_a_route_for_more_clients_is_a_bypass() -> None:
    assert ways_around_two_routes(None, ("10.0.0.0/8",), None) == {"all": "model"}
    assert ways_around_two_routes(("10.0.0.0/8",), None, ("0.0.0.0/0",)) == {"model": "all", "all": "model"}


@pytest.mark.parametrize(
    ("others", "bypasses"), [((1000,), {}), ((2000, 1000), {"model": "all"}), ((), {"all": "model"})]
)
def test_route_without_the_same_prompt_limit_is_a_bypass(others: tuple[int, ...], bypasses: dict[str, str]) -> None:
    limits = {"model": (1000,), "all": others}
    routes = {
        name: Route(name, _POOL, prompt_limits=tuple(TokenLimit(name, "all", item, 60_000) for item in tokens))
        for name, tokens in limits.items()
    }
    rules = (Rule("model", models=("llama",)), Rule("all"))
    assert ways_around(Listener("public", Address("127.0.0.1", 1), rules=rules), routes) == bypasses


def _refused(*rules: Rule, limited: str) -> dict[str, str]:
    """Return the routes whose WebSockets never open; all but `limited` serve all clients."""
    names = {rule.route for rule in rules}
    routes = {
        name: Route(name, _POOL, websocket=True, allow_from=("10.0.0.0/8",) if name == limited else None)
        for name in names
    }
    return refused_websockets(Listener("public", Address("127.0.0.1", 1), rules=rules), routes)


def test_websocket_is_refused_where_the_model_protects() -> None:
    chat, talk = PathMatch("prefix", "/v1"), PathMatch("exact", "/v1/realtime")
    secret, open_route = Rule("secret", path=talk, models=("secret",)), Rule("open", path=chat)
    assert _refused(secret, open_route, limited="secret") == {"secret": "open"}
    assert _refused(replace(secret, path=chat), open_route, limited="secret") == {"secret": "open", "open": "secret"}
    assert _refused(secret, open_route, limited="") == {}
    assert _refused(replace(secret, path=chat, methods=("POST",)), open_route, limited="secret") == {}
    assert _refused(secret, replace(open_route, path=PathMatch("prefix", "/v2")), limited="secret") == {}

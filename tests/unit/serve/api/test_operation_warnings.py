"""Warnings about side effects of an operation, for a compiled fleet and rows of its pools."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.serve.api.operation_warnings import not_served, unserved
from lbctl.serve.fleet.log import ReloadOutcome
from tests.support import api
from tests.support.fleet import compiled

FLEET = """
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes:
  chat: {match: {path_prefix: /chat}, split: {stable: 90, next: 10}}
  safe: {match: {path_prefix: /safe}, pool: stable, fallback: spare}
pools:
  stable: {replicas: [{name: s1, address: "10.0.0.1:1"}]}
  next: {replicas: [{name: n1, address: "10.0.0.2:1"}]}
  spare: {replicas: [{name: p1, address: "10.0.0.3:1"}]}
"""


def _warnings(changed_pool: str, **states: str) -> list[str]:
    routes = compiled(FLEET).topology.routes
    pools = [
        replace(api.pool(name), replicas=(replace(api.REPLICA, state=states.get(name, "in")),))
        for name in ("stable", "next", "spare")
    ]
    return list(unserved(pools, routes, {changed_pool}))


def test_warning_names_503_and_fallback_of_an_unserved_pool() -> None:
    (text,) = _warnings("stable", stable="drained")
    assert text == (
        "pool stable has no available replica: route chat returns 503 for 90 % of its requests; route safe uses its "
        "fallback spare, until a replica becomes available"
    )
    assert "route safe returns 503, until" in _warnings("stable", stable="draining", spare="down")[0]


@pytest.mark.parametrize("state", ["in", "ramping", "slow", "hot", "unknown"])
def test_served_and_unrelated_pools_get_no_warning(state: str) -> None:
    assert _warnings("stable", stable=state) == []
    assert _warnings("next", stable="drained") == []


def test_unpublished_files_are_reported_with_their_first_error() -> None:
    errors = tuple(Diagnostic("LB101", Position("f.yaml", line, 1), "routes", "no pool x") for line in (3, 4))
    (text,) = not_served(ReloadOutcome("invalid", errors, 0.0, "2 errors in its files"))
    expected = "the last valid fleet is published instead of the files: 2 errors in its files; the first: "
    assert text == f"{expected}{errors[0]}"
    (text,) = not_served(ReloadOutcome("refused", (), 0.0, "it would lose half of the replicas"))
    assert text.endswith("it would lose half of the replicas")
    (text,) = not_served(ReloadOutcome("rolled_back", (), 0.0))
    assert "ignored until they change" in text
    assert list(not_served(ReloadOutcome("published", (), 0.0))) == []
    assert list(not_served(None)) == []

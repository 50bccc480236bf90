"""Silent replicas are marked unfit only if another replica of their priority, region and zone may be picked."""

from __future__ import annotations

import pytest

from lbctl.ir.pools import Locality, PickPolicy
from lbctl.pick.suspects import Suspects
from lbctl.pick.table import Candidate, PoolTable

_STANDBY = {"priority": 1}
_EAST, _WEST = {"region": "eu", "zone": "east"}, {"region": "eu", "zone": "west"}


@pytest.mark.parametrize(
    ("others", "silent", "locality", "picked"),
    [
        ({}, "a", None, "bc"),
        ({}, "ab", None, "c"),
        ({}, "abc", None, "abc"),
        ({"b": {"fit": False}, "c": {"fit": False}}, "a", None, "a"),
        ({"b": {"weight": 0.0}, "c": {"weight": 0.0}}, "a", None, "abc"),
        ({"b": _STANDBY, "c": _STANDBY}, "a", None, "abc"),
        ({"b": _STANDBY, "c": _STANDBY}, "b", None, "ac"),
        ({"a": _EAST, "b": _WEST, "c": _WEST}, "a", None, "bc"),
        ({"a": _EAST, "b": _WEST, "c": _WEST}, "a", Locality(), "abc"),
        ({"a": _EAST, "b": _WEST, "c": _WEST}, "b", Locality(), "ac"),
        ({"b": {"region": "us"}, "c": {"region": "us"}}, "a", None, "abc"),
    ],
)  # fmt: skip
def test_silent_replicas_leave_no_tier_empty(
    others: dict[str, dict[str, object]], silent: str, locality: Locality | None, picked: str
) -> None:
    candidates = tuple(Candidate(name, f"{name}:1", **others.get(name, {})) for name in "abc")  # type: ignore[arg-type]
    table = PoolTable("chat", PickPolicy(()), candidates, locality=locality)
    suspects = Suspects({"chat": frozenset(silent)})
    marked = suspects.without(table, 0.0)
    assert [item.name for item in marked.candidates if item.fit] == list(picked)
    assert suspects.stalled(table) == {item.name for item in marked.candidates if "stalled" in item.reason}


def test_silent_replica_is_picked_if_the_other_is_unreached() -> None:
    table = PoolTable("chat", PickPolicy(()), tuple(Candidate(name, f"{name}:1") for name in "ab"))
    suspects = Suspects({"chat": frozenset("a")})
    suspects.failed("chat", "b", 0.0)
    assert [item.fit for item in suspects.without(table, 0.1).candidates] == [True, False]
    assert [item.fit for item in suspects.without(table, 1.0).candidates] == [False, True]


def test_replica_on_trial_gets_one_request_at_a_time() -> None:
    """Its weight is already at the floor. Nevertheless, it gets a request while the others are idle."""
    candidates = (Candidate("a", "a:1", weight=0.05), Candidate("b", "b:1", limit=9))
    table = PoolTable("chat", PickPolicy(()), candidates)
    suspects = Suspects({}, {"chat": frozenset("a"), "other": frozenset("b")})
    assert suspects.without(table, 0.0).candidates == (Candidate("a", "a:1", limit=1), candidates[1])
    assert suspects.stalled(table) == {"a"}


def test_replica_on_trial_has_no_limit_if_no_other_can_be_picked() -> None:
    table = PoolTable("chat", PickPolicy(()), tuple(Candidate(name, f"{name}:1") for name in "ab"))
    suspects = Suspects({}, {"chat": frozenset("a")})
    suspects.failed("chat", "b", 0.0)
    assert [item.limit for item in suspects.without(table, 0.1).candidates if item.fit] == [None]
    assert [item.limit for item in suspects.without(table, 1.0).candidates if item.fit] == [1, None]


def test_drained_replica_on_trial_gets_no_requests() -> None:
    candidates = (Candidate("a", "a:1", weight=0.0), Candidate("b", "b:1", fit=False))
    table = PoolTable("chat", PickPolicy(()), candidates)
    marked = Suspects({}, {"chat": frozenset("ab")}).without(table, 0.0).candidates
    assert [(item.weight, item.fit) for item in marked] == [(0.0, True), (1.0, False)]

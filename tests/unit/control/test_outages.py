"""Outages of the pools of rollouts, and what they do to a rollout in each mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from lbctl.control.outages import CALM, OUTAGE_TIMEOUT, Outage, ReplicaReport, track, unavailable
from lbctl.control.rollouts import Action, RolloutState, act, advance, pools_concerned, reconcile, splits
from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Rollout, RolloutStep, Route, Share
from lbctl.ir.topology import Topology

STEPS = (RolloutStep(20, 60_000), RolloutStep(100, 60_000))
HAVE_IT = ("chat",)
Mode = Literal["manual", "timed", "analysis"]
MODES: tuple[Mode, ...] = ("manual", "timed", "analysis")
BY_ITSELF: tuple[Mode, ...] = ("timed", "analysis")
DOWN = {"new": Outage("pool new has no available replica: a is down", 10, 10 + OUTAGE_TIMEOUT)}
BOTH_DOWN = {**DOWN, "old": Outage("pool old has no available replica: b is down", 10, 10 + OUTAGE_TIMEOUT)}


def rollout_of(mode: Mode) -> Rollout:
    return Rollout("new", mode, STEPS)


def topology_of(mode: Mode, **more: Any) -> Topology:
    route = Route("chat", Forward((Share("new", 0), Share("old", 100))), rollout=rollout_of(mode))
    return Topology((), (route,), (Pool("new"), Pool("old")), **more)


def running(mode: Mode, phase: Any = "progressing") -> tuple[RolloutState, ...]:
    """Return the rollout at its first step, which all proxies have."""
    (state,) = reconcile((), topology_of(mode), 0)
    if mode == "manual":
        state = act(state, rollout_of(mode), "start", 0)
    (state,) = advance((state,), topology_of(mode), 0, HAVE_IT)
    return (replace(state, phase=phase),)


@pytest.mark.parametrize("state", ["in", "ramping", "slow", "hot", "unknown"])
def test_one_replica_with_requests_makes_a_pool_available(state: str) -> None:
    assert unavailable("new", [ReplicaReport("a", "down", ""), ReplicaReport("b", state, "")]) == ""


def test_reason_names_each_replica_and_its_state() -> None:
    reports = [
        ReplicaReport("a", "down", "L4CON"),
        ReplicaReport("b", "ejected", ""),
        ReplicaReport("c", "drained", ""),
    ]
    assert unavailable("new", reports) == (
        "pool new has no available replica: a is down (L4CON), b is ejected, c is drained"
    )
    many = [ReplicaReport(f"r{number}", "down", "") for number in range(5)]
    assert unavailable("new", many).endswith("r0 is down, r1 is down, r2 is down, 2 more")
    assert unavailable("new", []) == "pool new has no replicas"


def test_outage_that_continues_keeps_its_beginning() -> None:
    first = track({}, {"new": "down", "old": ""}, 10)
    assert first == {"new": Outage("down", 10, 10)}
    assert track(first, {"new": "still down"}, 12) == {"new": Outage("still down", 10, 12)}
    assert track(first, {}, 12) == {}, "no rollout needs the pool"


def test_outage_ends_after_some_time_with_a_replica() -> None:
    first = track({}, {"new": "down"}, 10)
    calm = track(first, {"new": ""}, 10 + CALM - 0.1)
    assert calm == first, "a reloaded proxy has not checked yet"
    assert track(calm, {"new": ""}, 10 + CALM) == {}
    assert track(calm, {"new": "down"}, 19)["new"].since == 10


@pytest.mark.parametrize("mode", BY_ITSELF)
def test_rollout_begins_when_its_target_is_available(mode: Mode) -> None:
    topology = topology_of(mode)
    states = reconcile((), topology, 0, DOWN)
    assert [state.phase for state in states] == ["waiting"]
    assert advance(states, topology, 1000, HAVE_IT, DOWN) == reconcile(states, topology, 1000, DOWN) == states
    assert splits(states, topology) == {}
    (begun,) = advance(states, topology, 1001, (), {})
    assert (begun.phase, begun.percent, begun.since) == ("progressing", 20, 1001)


@pytest.mark.parametrize("mode", BY_ITSELF)
def test_rollout_waits_for_the_first_check_of_its_target(mode: Mode) -> None:
    topology = topology_of(mode)
    states = reconcile((), topology, 0, {}, ["new"])
    assert [state.phase for state in states] == ["waiting"]
    assert advance(states, topology, 1, HAVE_IT, {}, ["new"]) == states
    (begun,) = advance(states, topology, 2, (), {}, ["old"])
    assert (begun.phase, begun.since) == ("progressing", 2)
    assert advance(running(mode), topology, 1, HAVE_IT, {}, ["new"]) == running(mode), "it has begun before a restart"


@pytest.mark.parametrize("phase", ["progressing", "paused"])
@pytest.mark.parametrize("mode", MODES)
def test_running_rollout_ends_when_its_target_dies(mode: Mode, phase: str) -> None:
    topology, states = topology_of(mode), running(mode, phase)
    once = {"new": Outage("down", 10, 10 + OUTAGE_TIMEOUT - 0.1)}
    assert advance(states, topology, 17, HAVE_IT, once) == states, "checks may fail once"
    (ended,) = advance(states, topology, 10 + OUTAGE_TIMEOUT, HAVE_IT, DOWN)
    assert (ended.phase, ended.reason) == ("rolled_back", DOWN["new"].reason)
    assert splits((ended,), topology) == {}


@pytest.mark.parametrize("mode", BY_ITSELF)
def test_target_found_dead_after_the_beginning_is_awaited(mode: Mode) -> None:
    topology, states = topology_of(mode), running(mode)
    found = {"new": Outage("pool new has no available replica: a is down", 2, 2)}
    (waiting,) = advance(states, topology, 2, HAVE_IT, found)
    assert (waiting.phase, waiting.reason) == ("waiting", found["new"].reason)
    assert splits((waiting,), topology) == {}
    (begun,) = advance((waiting,), topology, 600, HAVE_IT, {})
    assert (begun.phase, begun.step, begun.since, begun.reason) == ("progressing", 0, 600, "")


@pytest.mark.parametrize("mode", MODES)
def test_outage_of_all_pools_ends_no_rollout(mode: Mode) -> None:
    states = running(mode)
    assert advance(states, topology_of(mode), 50, HAVE_IT, BOTH_DOWN) == states


def test_earlier_outage_of_the_old_pool_does_not_count() -> None:
    earlier = {**DOWN, "old": Outage("pool old has no available replica: b is down", 5, 12)}
    (ended,) = advance(running("manual"), topology_of("manual"), 50, HAVE_IT, earlier)
    assert ended.phase == "rolled_back"


def test_step_does_not_begin_without_an_available_replica() -> None:
    topology, states = topology_of("timed"), running("timed")
    since = {"new": Outage("down", 60, 61)}
    assert advance(states, topology, 61, HAVE_IT, since) == states
    (after,) = advance(states, topology, 61, HAVE_IT, {})
    assert after.percent == 100


def test_promoted_rollout_does_not_end() -> None:
    states = running("manual", "promoted")
    assert advance(states, topology_of("manual"), 500, HAVE_IT, DOWN) == states
    assert pools_concerned(states, topology_of("manual")) == frozenset()
    assert pools_concerned(running("manual"), topology_of("manual")) == {"new", "old"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", ["start", "promote", "resume", "set"])
def test_operator_needs_the_override_for_a_dead_target(action: Action, mode: Mode) -> None:
    rollout, topology = rollout_of(mode), topology_of(mode)
    (state,) = running(mode, "aborted" if action == "start" else "paused")
    with pytest.raises(ValueError, match="a is down; use --allow-unavailable"):
        act(state, rollout, action, 1, 30.0, DOWN["new"])
    allowed = act(state, rollout, action, 1, 30.0, DOWN["new"], allow_unavailable=True)
    assert allowed.runs or allowed.phase == "promoted"
    (later,) = advance((allowed,), topology, 59, HAVE_IT, DOWN)
    assert later.phase == allowed.phase, "the override lasts"


def test_override_ends_with_the_next_start() -> None:
    rollout = rollout_of("manual")
    (state,) = running("manual", "waiting")
    allowed = act(state, rollout, "start", 1, outage=DOWN["new"], allow_unavailable=True)
    ended = act(allowed, rollout, "abort", 2)
    with pytest.raises(ValueError, match="allow"):
        act(ended, rollout, "start", 3, outage=DOWN["new"])


@pytest.mark.parametrize("action", ["pause", "abort"])
def test_actions_without_new_requests_need_no_override(action: Action) -> None:
    (state,) = running("timed")
    assert act(state, rollout_of("timed"), action, 1, outage=DOWN["new"]).phase in ("paused", "aborted")
    assert act(state, rollout_of("timed"), "set", 1, 0.0, DOWN["new"]).percent == 0

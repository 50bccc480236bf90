"""Rollouts as a pure state machine: steps, time, operators, and files that change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.control.rollouts import RolloutState, act, advance, next_step, reconcile, shares_at, splits, waits_for_proxy
from lbctl.control.splits import MAX_SHARE
from lbctl.ir.pools import Model, Pool
from lbctl.ir.routes import Forward, Rollout, RolloutStep, Route, Share
from lbctl.ir.topology import Topology

STEPS = (RolloutStep(5, 60_000), RolloutStep(50, 120_000), RolloutStep(100))


def topology_of(
    mode: str = "timed", version: str = "v2", old: int = 100, old_version: str = "v1", **more: Any
) -> Topology:
    rollout = Rollout("new", mode, more.pop("steps", STEPS))  # type: ignore[arg-type]
    route = Route("chat", Forward((Share("new", 0), Share("old", old))), rollout=rollout)
    pools = (Pool("new", model=Model("m", version)), Pool("old", model=Model("m", old_version)))
    return Topology((), (route,), pools, **more)


HAVE_IT = ("chat",)
"""Routes whose current step a proxy has applied."""


def only(states: tuple[RolloutState, ...]) -> RolloutState:
    (state,) = states
    return state


def begun(topology: Topology) -> tuple[RolloutState, ...]:
    """Return the rollout of the fleet at time 0, after a proxy has applied its first step."""
    return advance(reconcile((), topology, 0), topology, 0, HAVE_IT)


def test_a_timed_rollout_advances_one_step_at_a_time() -> None:
    topology = topology_of()
    states = begun(topology)
    assert splits(states, topology) == {"chat": (("new", 1), ("old", 19))}
    assert advance(states, topology, 59.9, HAVE_IT) == states
    states = advance(states, topology, 60, HAVE_IT)
    assert (only(states).phase, splits(states, topology)) == ("progressing", {"chat": (("new", 1), ("old", 1))})
    states = advance(states, topology, 60, HAVE_IT)
    assert next_step(only(states), topology.routes[0].rollout) == 180  # type: ignore[arg-type]
    states = advance(states, topology, 100_000, HAVE_IT)
    assert (only(states).phase, splits(states, topology)) == ("promoted", {"chat": (("new", 1), ("old", 0))})
    assert advance(states, topology, 200_000, HAVE_IT) == reconcile(states, topology, 200_000) == states


def test_a_hold_passes_only_while_a_proxy_has_the_step() -> None:
    topology = topology_of()
    rollout = topology.routes[0].rollout
    assert rollout is not None
    states = reconcile((), topology, 0)
    assert advance(states, topology, 100_000, ()) == states
    assert (waits_for_proxy(only(states), rollout), next_step(only(states), rollout)) == (True, None)
    states = advance(states, topology, 100_000, HAVE_IT)
    assert (waits_for_proxy(only(states), rollout), next_step(only(states), rollout)) == (False, 100_060)
    states = advance(states, topology, 100_050, ())
    assert advance(states, topology, 200_000, ()) == states, "all proxies have gone"
    states = advance(states, topology, 200_000, HAVE_IT)
    assert (only(states).step, next_step(only(states), rollout)) == (0, 200_010)
    assert only(advance(states, topology, 200_010, HAVE_IT)).step == 1


def test_only_an_operator_ends_a_step_no_proxy_has() -> None:
    topology = topology_of()
    rollout = topology.routes[0].rollout
    assert rollout is not None
    state = act(only(reconcile((), topology, 0)), rollout, "promote", 10)
    assert (state.step, advance((state,), topology, 100_000, ("other",))) == (1, (state,))


def test_an_operator_starts_and_ends_steps_of_a_manual_rollout() -> None:
    topology = topology_of("manual")
    rollout = topology.routes[0].rollout
    assert rollout is not None
    state = only(reconcile((), topology, 0))
    assert (state.phase, splits((state,), topology)) == ("waiting", {})
    with pytest.raises(ValueError, match="start it first"):
        act(state, rollout, "promote", 1)
    state = act(state, rollout, "start", 10)
    assert advance((state,), topology, 9_999, HAVE_IT) == (state,)
    percents = [state.percent]
    while state.phase == "progressing":
        state = act(state, rollout, "promote", 20)
        percents.append(state.percent)
    assert (state.phase, percents) == ("promoted", [5, 50, 100])


def test_a_pause_stops_the_hold_and_keeps_a_manual_share() -> None:
    topology = topology_of()
    rollout = topology.routes[0].rollout
    assert rollout is not None
    state = act(only(begun(topology)), rollout, "pause", 40)
    assert advance((state,), topology, 9_999, HAVE_IT) == (state,)
    state = act(state, rollout, "set", 50, percent=20)
    assert splits((state,), topology) == {"chat": (("new", 1), ("old", 4))}
    state = only(advance((act(state, rollout, "resume", 100),), topology, 100, HAVE_IT))
    assert (state.percent, next_step(state, rollout)) == (5, 120)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_abort_wins_at_every_step_and_after_the_last(after: int) -> None:
    topology = topology_of("manual")
    rollout = topology.routes[0].rollout
    assert rollout is not None
    state = act(only(reconcile((), topology, 0)), rollout, "start", 0)
    for _ in range(min(after, 2)):
        state = act(state, rollout, "promote", 1)
    state = act(state, rollout, "abort", 5)
    assert (state.phase, splits((state,), topology)) == ("aborted", {})
    assert reconcile((state,), topology, 9) == advance((state,), topology, 9_999, HAVE_IT) == (state,)


def test_changed_files_supersede_or_restart_a_rollout() -> None:
    topology = topology_of()
    states = advance(begun(topology), topology, 60, HAVE_IT)
    other_split = topology_of(old=99)
    assert splits(states, other_split) == {}
    ended = reconcile(states, other_split, 70)
    assert only(ended).phase == "superseded"
    assert reconcile(ended, other_split, 80) == ended
    new_model = topology_of(version="v3")
    assert splits(states, new_model) == {}
    again = only(reconcile(states, new_model, 70))
    assert (again.phase, again.step, again.since) == ("progressing", 0, 70)
    replicas = replace(topology, pools=(replace(topology.pools[0], drain_deadline=1), topology.pools[1]))
    assert reconcile(states, replicas, 70) == states
    assert reconcile(states, replace(topology, routes=()), 70) == ()


@pytest.mark.parametrize("end", ["abort", "superseded", "promoted"])
def test_an_ended_rollout_keeps_its_end_when_files_return(end: str) -> None:
    first, second = topology_of(), topology_of(version="v3")
    rollout = first.routes[0].rollout
    assert rollout is not None
    states = advance(begun(first), first, 60, HAVE_IT)
    if end == "abort":
        states = (replace(act(only(states), rollout, "abort", 70), reason="worse answers"),)
    elif end == "promoted":
        states = advance(advance(states, first, 60, HAVE_IT), first, 180, HAVE_IT)
    before = splits(states, first)
    other = reconcile(states, second, 200)
    assert only(other).phase == "progressing", "another model is a new one"
    assert splits(other, first) == (before if end == "promoted" else {}), "also before it is followed"
    again = reconcile(other, first, 210)
    assert only(again).phase == {"abort": "aborted"}.get(end, end)
    assert only(again).reason == {
        "abort": "worse answers", "superseded": "another rollout replaced it", "promoted": "the state in which it "
        "ended before",
    }[end]  # fmt: skip
    assert splits(again, first) == splits(other, first)
    assert reconcile(again, first, 220) == advance(again, first, 9_999, HAVE_IT) == again
    assert only(reconcile(again, second, 230)).phase == "superseded", "it has been replaced while it ran"
    started = act(only(again), rollout, "start", 240)
    assert (started.phase, started.step) == ("progressing", 0)


def test_a_new_model_of_an_old_pool_ends_a_running_rollout() -> None:
    topology, other = topology_of(), topology_of(old_version="v1.1")
    running = advance(begun(topology), topology, 60, HAVE_IT)
    assert splits(running, other) == {}, "the split in the files holds with the first publication of the files"
    ended = only(reconcile(running, other, 70))
    assert (ended.phase, ended.reason) == ("superseded", "the files set a different model for an old pool")
    assert reconcile((ended,), topology, 80) == (replace(ended, models=only(running).models),)
    promoted = advance(advance(running, topology, 60, HAVE_IT), topology, 100_000, HAVE_IT)
    after = reconcile(promoted, other, 100_001)
    assert only(after).phase == "promoted"
    assert splits(after, other) == splits(promoted, other) == {"chat": (("new", 1), ("old", 0))}


def test_a_rollout_saved_by_an_earlier_version_continues() -> None:
    topology = topology_of()
    saved = (replace(only(reconcile((), topology, 0)), models=""),)
    assert splits(saved, topology) == {"chat": (("new", 1), ("old", 19))}
    state = only(reconcile(saved, topology, 1))
    assert (state.phase, state.since) == ("progressing", 0)
    assert only(reconcile((state,), topology_of(old_version="v1.1"), 2)).phase == "superseded"


@given(st.lists(st.integers(0, MAX_SHARE), min_size=1, max_size=4), st.integers(0, MAX_SHARE), st.integers(0, 10_000))
def test_other_pools_keep_their_proportions_at_any_share(others: list[int], to: int, hundredths: int) -> None:
    base = (*((f"p{number}", share) for number, share in enumerate(others)), ("to", to))
    shares = dict(shares_at(base, "to", hundredths / 100))
    total = sum(shares.values())
    assert set(shares) == {pool for pool, _ in base}
    assert total > 0
    assert max(shares.values()) <= MAX_SHARE
    expected = hundredths / 10_000 if sum(others) else 1.0
    assert shares["to"] / total == pytest.approx(expected, abs=1e-4)
    for number, share in enumerate(others):
        rest = (1 - expected) * share / max(1, sum(others))
        assert shares[f"p{number}"] / total == pytest.approx(rest, abs=1e-4)

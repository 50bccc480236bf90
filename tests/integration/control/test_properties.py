"""Properties of the control loop that hold for every history of samples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.control.effects import HealthChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Froze, Observed, Ticked
from lbctl.control.state import State
from lbctl.control.step import step
from tests.support.control import INTERVAL, NAME, NOW, Talk, pool, replica, seen

pytestmark = pytest.mark.slow

CAPACITIES = (5.0, 5.0, 2.0, 1.0, 1.0)
FLEET = tuple(replica(f"r{place}", capacity=capacity, gpu=f"G{capacity}") for place, capacity in enumerate(CAPACITIES))
NAMES = tuple(item.name for item in FLEET)
FLOOR, CEILING, UP, DOWN = 0.05, 4.0, 0.10, 0.50

news = st.fixed_dictionaries(
    {"speed": st.none() | st.floats(1e-3, 1e3)},
    optional={
        "progress": st.sampled_from([1.0, 2.0, 3.0]),
        "running": st.sampled_from([0.0, 5.0]),
        "temperature": st.sampled_from([50.0, 88.0, 95.0]),
        "gpu_memory_free": st.sampled_from([0.0, 2.1e9, 9e9]),
        "xid": st.sampled_from([0.0, 79.0]),
        "in_flight": st.sampled_from([0, 3]),
        "gpu": st.floats(0, 1),
        "queue": st.floats(0, 1000),
        "batch": st.floats(1, 300),
    },
)
look = st.dictionaries(st.sampled_from(NAMES), news)
history = st.lists(st.tuples(look, st.sampled_from([0.5, INTERVAL, INTERVAL, INTERVAL, 20.0])), max_size=25)
strategy = st.sampled_from(["adaptive", "adaptive", "composite", "static"])


@given(history, strategy)
@settings(deadline=None)
def test_weights_stay_between_floor_and_ceiling(looks: Any, name: str) -> None:
    talk = Talk(pool(FLEET, weighting={"strategy": name}))
    for samples, seconds in looks:
        talk.look(samples, seconds)
        for item in FLEET:
            assert FLOOR * item.capacity - 1e-9 <= talk.weights[item.name] <= CEILING * item.capacity + 1e-9


@given(history, strategy)
@settings(deadline=None)
def test_a_weight_moves_at_most_one_step_per_interval(looks: Any, name: str) -> None:
    talk = Talk(pool(FLEET, weighting={"strategy": name}))
    for samples, seconds in looks:
        before = {each: talk.track(each) for each in NAMES}
        talk.look(samples, seconds)
        for each in NAMES:
            was, now = before[each], talk.track(each)
            if now.health.phase == "out":
                continue
            assert -DOWN - 1e-9 <= now.trajectory.multiplier - was.trajectory.multiplier <= UP + 1e-9
            if now.trajectory.multiplier != was.trajectory.multiplier:
                assert now.trajectory.moved_at - was.trajectory.moved_at >= 0.99 * INTERVAL


@given(history)
@settings(deadline=None)
def test_a_replica_without_samples_keeps_its_capacity(looks: Any) -> None:
    talk = Talk(pool(FLEET))
    for samples, seconds in looks:
        talk.look({name: values for name, values in samples.items() if name != "r1"}, seconds)
    assert (talk.weights["r1"], talk.verdicts["r1"]) == (FLEET[1].capacity, "in")


@given(st.lists(st.sampled_from(NAMES), max_size=40))
@settings(deadline=None)
def test_empty_samples_have_no_effect(names: list[str]) -> None:
    talk = Talk(pool(FLEET))
    for place, name in enumerate(names):
        now = NOW + INTERVAL * (place + 1)
        talk.say(Observed(now, NAME, {name: seen(now, speed=None)}))
    assert not [item for item in talk.effects if isinstance(item, WeightsChanged | HealthChanged)]


@given(history, strategy)
@settings(deadline=None)
def test_equal_histories_have_equal_effects(looks: Any, name: str) -> None:
    first, second = (Talk(pool(FLEET, weighting={"strategy": name})) for _ in range(2))
    for samples, seconds in looks:
        assert first.look(samples, seconds) == second.look(dict(reversed(samples.items())), seconds)
    assert first.state == second.state


@given(history)
@settings(deadline=None)
def test_frozen_weights_do_not_change(looks: Any) -> None:
    talk = Talk(pool(FLEET, deep={"min_free_memory": None, "fatal_xids": (), "stalled_after": None}))
    talk.say(Froze(NOW, NAME))
    for samples, seconds in looks:
        talk.look(samples, seconds)
    assert talk.weights == {item.name: item.capacity for item in FLEET}


@given(history)
@settings(deadline=None)
def test_a_pool_without_samples_returns_to_its_capacities(looks: Any) -> None:
    talk = Talk(pool(FLEET))
    for samples, seconds in looks:
        talk.look(samples, seconds)
    talk.wait(1000.0, interval=20.0)
    assert "out" not in talk.verdicts.values()
    home = {item.name: item.capacity for item in FLEET if talk.verdicts[item.name] == "in"}
    assert {name: talk.weights[name] for name in home} == home


@given(history)
@settings(deadline=None)
def test_at_most_half_of_a_pool_is_ejected(looks: Any) -> None:
    talk = Talk(pool(FLEET))
    for samples, seconds in looks:
        talk.look(samples, seconds)
        assert list(talk.verdicts.values()).count("out") <= len(FLEET) // 2


@given(history)
@settings(deadline=None)
def test_order_and_names_of_replicas_do_not_matter(looks: Any) -> None:
    other = {name: f"x{place}" for place, name in enumerate(reversed(NAMES))}
    renamed = tuple(replica(other[item.name], capacity=item.capacity, gpu=item.gpu) for item in FLEET)
    off = {"min_free_memory": None, "fatal_xids": (), "stalled_after": None}
    talk, same = Talk(pool(FLEET, deep=off)), Talk(pool(tuple(reversed(renamed)), deep=off))
    for samples, seconds in looks:
        talk.look(samples, seconds)
        same.look({other[name]: values for name, values in samples.items()}, seconds)
    assert {other[name]: weight for name, weight in talk.weights.items()} == pytest.approx(same.weights)


def test_events_about_unknown_pools_and_replicas_do_nothing() -> None:
    state, _ = step(State(), FleetChanged(NOW, (pool(),)))
    assert step(state, Observed(NOW + 1, "gone", {}))[1] == ()
    after, effects = step(state, Observed(NOW + 1, NAME, {"gone": seen(NOW + 1)}))
    assert effects == ()
    assert step(after, Ticked(NOW + 2))[1] == ()

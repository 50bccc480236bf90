"""Properties of the control loop that hold for every history of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.control.effects import HealthChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Froze, Observed, Ticked
from lbctl.control.loop_output import LoopOutput
from lbctl.control.state import State, weights
from lbctl.control.step import step
from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Telemetry
from lbctl.ir.topology import Topology
from lbctl.ir.weight import from_capacity
from tests.support.control import INTERVAL, NAME, NOW, Talk, pool, replica, seen

pytestmark = pytest.mark.slow

CAPACITIES = (5.0, 5.0, 2.0, 1.0, 1.0)
FLEET = tuple(replica(f"r{place}", capacity=capacity, gpu=f"G{capacity}") for place, capacity in enumerate(CAPACITIES))
NAMES = tuple(item.name for item in FLEET)
TELEMETRY = Telemetry(sources=(MetricsSource("vllm", "http://{host}/metrics"),))
FLOOR, CEILING, UP, DOWN = 0.05, 4.0, 0.10, 0.50

_VALUES: Mapping[str, Callable[[Random], float]] = {
    "progress": lambda random: random.choice((1.0, 2.0, 3.0)),
    "running": lambda random: random.choice((0.0, 5.0)),
    "temperature": lambda random: random.choice((50.0, 88.0, 95.0)),
    "gpu_memory_free": lambda random: random.choice((0.0, 2.1e9, 9e9)),
    "xid": lambda random: random.choice((0.0, 79.0)),
    "in_flight": lambda random: random.choice((0, 3)),
    "gpu": lambda random: random.random(),
    "queue": lambda random: random.choice((0.0, 1000.0, random.uniform(0.0, 1000.0))),
    "batch": lambda random: random.uniform(1.0, 300.0),
}
"""Signals of a sample → a random value."""


def random_sample(random: Random) -> dict[str, float | None]:
    speed = random.choice((None, 1e-3, 1e3, *(10 ** random.uniform(-3.0, 3.0) for _ in range(4))))
    return {"speed": speed} | {name: value(random) for name, value in _VALUES.items() if random.random() < 0.5}


def random_looks(seed: int, length: int) -> list[tuple[dict[str, dict[str, float | None]], float]]:
    """Return samples of some replicas and the seconds since the last look, for each look.

    Hypothesis draws only the seed: drawing every value takes ten times as long as the control loop, and yields
    histories of five looks on average.
    """
    random = Random(seed)
    return [
        (
            {name: random_sample(random) for name in NAMES if random.random() < 0.6},
            random.choice((0.5, INTERVAL, INTERVAL, INTERVAL, 20.0)),
        )
        for _ in range(length)
    ]


history = st.builds(random_looks, st.integers(0, 2**32 - 1), st.integers(0, 25))
strategy = st.sampled_from(["adaptive", "adaptive", "composite", "static"])


@given(history, strategy)
@settings(max_examples=50)
def test_weights_stay_between_floor_and_ceiling(looks: Any, name: str) -> None:
    talk = Talk(pool(FLEET, weighting={"strategy": name}))
    for samples, seconds in looks:
        talk.look(samples, seconds)
        for item in FLEET:
            assert FLOOR * item.capacity - 1e-9 <= talk.weights[item.name] <= CEILING * item.capacity + 1e-9


@given(history, strategy)
@settings(max_examples=50)
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
@settings(max_examples=50)
def test_a_replica_without_samples_keeps_its_capacity(looks: Any) -> None:
    talk = Talk(pool(FLEET))
    for samples, seconds in looks:
        talk.look({name: values for name, values in samples.items() if name != "r1"}, seconds)
    assert (talk.weights["r1"], talk.verdicts["r1"]) == (FLEET[1].capacity, "in")


@given(st.lists(st.sampled_from(NAMES), max_size=40))
@settings(max_examples=50)
def test_empty_samples_have_no_effect(names: list[str]) -> None:
    talk = Talk(pool(FLEET))
    for place, name in enumerate(names):
        now = NOW + INTERVAL * (place + 1)
        talk.say(Observed(now, NAME, {name: seen(now, speed=None)}))
    assert not [item for item in talk.effects if isinstance(item, WeightsChanged | HealthChanged)]


@given(history, strategy)
@settings(max_examples=50)
def test_equal_histories_have_equal_effects(looks: Any, name: str) -> None:
    first, second = (Talk(pool(FLEET, weighting={"strategy": name})) for _ in range(2))
    for samples, seconds in looks:
        assert first.look(samples, seconds) == second.look(dict(reversed(samples.items())), seconds)
    assert first.state == second.state


def random_fleet(random: Random) -> Pool:
    """Return the pool with some replicas missing, some with another address, and some with another capacity."""
    moved = Address("moved.internal", 8000)
    replicas = (
        replace(
            item,
            address=moved if random.random() < 0.2 else item.address,
            capacity=item.capacity * random.choice((1.0, 1.0, 1.5)),
        )
        for item in FLEET
        if random.random() < 0.9
    )
    return pool(tuple(replicas), telemetry=TELEMETRY)


@given(history)
@settings(max_examples=50)
def test_effects_lead_to_the_weights_and_ejections_of_the_state(looks: Any) -> None:
    random = Random(len(looks))
    talk = Talk(pool(FLEET, telemetry=TELEMETRY))
    output = LoopOutput().after(talk.effects)
    for samples, seconds in looks:
        output = output.after(talk.look(samples, seconds))
        if random.random() < 0.3:
            fleet = random_fleet(random)
            output = output.within(Topology((), (), (fleet,))).after(talk.say(FleetChanged(talk.now, (fleet,))))
        state = talk.state.pools[NAME]
        capacities = {item.name: from_capacity(item.capacity) for item in state.pool.replicas}
        assert output.weights.get(NAME, capacities) == weights(state)
        out = {item.replica.name: item.health.reasons for item in state.replicas if item.health.phase == "out"}
        assert {name: reasons[: len(out[name])] for name, reasons in output.ejections.get(NAME, {}).items()} == out


@given(history)
@settings(max_examples=50)
def test_frozen_weights_do_not_change(looks: Any) -> None:
    talk = Talk(pool(FLEET, deep={"min_free_memory": None, "fatal_xids": (), "stalled_after": None}))
    talk.say(Froze(NOW, NAME))
    for samples, seconds in looks:
        talk.look(samples, seconds)
    assert talk.weights == {item.name: item.capacity for item in FLEET}


@given(history)
@settings(max_examples=50)
def test_a_pool_without_samples_returns_to_its_capacities(looks: Any) -> None:
    talk = Talk(pool(FLEET))
    for samples, seconds in looks:
        talk.look(samples, seconds)
    talk.wait(1000.0, interval=20.0)
    assert "out" not in talk.verdicts.values()
    home = {item.name: item.capacity for item in FLEET if talk.verdicts[item.name] == "in"}
    assert {name: talk.weights[name] for name in home} == home


@given(history)
@settings(max_examples=50)
def test_at_most_half_of_a_pool_is_ejected(looks: Any) -> None:
    talk = Talk(pool(FLEET))
    for samples, seconds in looks:
        talk.look(samples, seconds)
        assert list(talk.verdicts.values()).count("out") <= len(FLEET) // 2


@given(history)
@settings(max_examples=50)
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

"""Weights: sequences of samples, and the weights that the proxies would get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lbctl.control.decisions import decisions
from lbctl.control.effects import ModeChanged, WeightsChanged
from lbctl.control.events import FleetChanged, Froze, Observed, Unfroze
from lbctl.ir.pools import MetricsSource, Pool, SlowStart, Telemetry
from lbctl.ir.weight import Weight, from_capacity
from tests.support.control import INTERVAL, NAME, NOW, Talk, batches, pool, replica, seen

NAMES = tuple(f"r{place:05}" for place in range(4))
SLOW = NAMES[1]


def all_at(speed: float | None = 1.0, **more: float) -> dict[str, dict[str, float | None]]:
    return {name: {"speed": speed, **more} for name in NAMES}


def halved() -> dict[str, dict[str, float | None]]:
    return all_at() | {SLOW: {"speed": 0.5}}


def test_a_healthy_fleet_keeps_its_weights() -> None:
    talk = Talk(pool())
    for look in range(50):
        talk.look({name: {"speed": 1.0 + 0.1 * ((look + place) % 3 - 1)} for place, name in enumerate(NAMES)})
    assert talk.effects == []


def test_a_throttled_replica_gets_its_share_at_once() -> None:
    talk = Talk(pool())
    talk.look(halved())
    assert talk.weights == {name: pytest.approx(0.5 if name == SLOW else 1.0) for name in NAMES}


def test_a_recovered_replica_gains_a_tenth_per_interval() -> None:
    talk = Talk(pool(weighting={"smoothing": 1}))
    talk.look(halved())
    steps = []
    for _ in range(7):
        talk.look(all_at())
        steps.append(round(talk.weights[SLOW], 6))
    assert steps == [0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0]


def test_a_burst_of_samples_moves_a_weight_once() -> None:
    talk = Talk(pool())
    talk.look(all_at() | {SLOW: {"speed": 0.1}})
    for _ in range(10):
        talk.look(all_at() | {SLOW: {"speed": 0.1}}, seconds=0.1)
    assert talk.weights[SLOW] == 0.5
    talk.look(all_at() | {SLOW: {"speed": 0.1}})
    assert talk.weights[SLOW] == pytest.approx(0.1)


def test_weights_have_a_floor_and_a_ceiling() -> None:
    talk = Talk(pool())
    for _ in range(60):
        talk.look(all_at() | {SLOW: {"speed": 0.001}, NAMES[2]: {"speed": 50.0}})
    assert talk.weights[SLOW] == 0.05
    assert talk.weights[NAMES[2]] == 4.0


def test_the_weight_changes_only_outside_the_hysteresis_band() -> None:
    talk = Talk(pool(weighting={"smoothing": 1}))
    for _ in range(2):
        talk.look(all_at() | {SLOW: {"speed": 0.8}})  # |ln 0.8| = 0.22
    assert talk.effects == []
    talk.look(all_at() | {SLOW: {"speed": 0.7}})  # 0.36
    assert talk.weights[SLOW] == pytest.approx(0.7)
    for _ in range(4):
        talk.look(all_at() | {SLOW: {"speed": 0.82}})  # 0.20: still above release_below
    assert talk.weights[SLOW] == pytest.approx(0.82, abs=0.03)
    for _ in range(4):
        talk.look(all_at() | {SLOW: {"speed": 0.9}})  # 0.11: released
    assert talk.weights[SLOW] == 1.0


def test_moves_smaller_than_the_deadband_are_not_sent() -> None:
    talk = Talk(pool(weighting={"smoothing": 1}))
    talk.look(halved())
    for speed in (0.52, 0.53, 0.48, 0.54):
        assert talk.look(all_at() | {SLOW: {"speed": speed}}) == ()
    assert talk.look(all_at() | {SLOW: {"speed": 0.56}}) == (WeightsChanged(NAME, talk.given, False),)


def test_a_large_batch_explains_a_long_step() -> None:
    talk = Talk(pool())
    talk.look(all_at() | {SLOW: {"batch": 200.0}})
    assert talk.effects == []


def test_different_gpus_are_compared_by_capacity() -> None:
    fast = tuple(replica(f"h{place}", capacity=5.0, gpu="H100-SXM") for place in range(2))
    slow = tuple(replica(f"t{place}", capacity=1.0, gpu="T4") for place in range(2))
    for speed, weight in ((0.8, 1.0), (0.4, 0.4)):
        talk = Talk(pool((*fast, *slow)))
        send_varied_work(talk, {"h0": 5.0, "h1": 5.0, "t0": speed, "t1": speed})
        assert talk.weights["t0"] == pytest.approx(weight)
        assert talk.weights["h0"] == 5.0


def send_varied_work(talk: Talk, speeds: Mapping[str, float]) -> None:
    """Send samples with different batches, enough for a curve per GPU type and for the weight to settle."""
    for look in range(30):
        work = {"batch": 20.0 + 7 * look % 31, "prompts": 60.0 + 40 * (look % 4)}
        talk.look({name: {"speed": speed, **work} for name, speed in speeds.items()})


def test_a_capacity_wrong_by_a_factor_of_two_is_corrected() -> None:
    talk = Talk(pool((*(replica(f"r{place}") for place in range(3)), replica("r3", capacity=2.0))))
    for _ in range(3):
        talk.look({f"r{place}": {} for place in range(4)})
    assert talk.weights == {"r0": 1.0, "r1": 1.0, "r2": 1.0, "r3": pytest.approx(1.0)}


def test_batch_engines_are_judged_by_their_compute_time() -> None:
    talk = Talk(pool())
    now = NOW + INTERVAL
    talk.say(Observed(now, NAME, {name: batches(now, 0.5 if name == SLOW else 1.0) for name in NAMES}))
    assert talk.weights[SLOW] == pytest.approx(0.5)


def test_tokens_are_not_compared_with_batches() -> None:
    talk = Talk(pool(2))
    now = NOW + INTERVAL
    talk.say(Observed(now, NAME, {NAMES[0]: batches(now, 1.0)}))
    talk.look({NAMES[1]: {"speed": 0.1}})
    assert talk.effects == []


def test_static_weights_are_the_capacities() -> None:
    talk = Talk(pool(weighting={"strategy": "static"}))
    for _ in range(5):
        talk.look(halved())
    assert talk.effects == []


def test_a_source_without_evidence_keeps_the_capacity() -> None:
    talk = Talk(pool())
    for _ in range(5):
        talk.look(all_at(None, queue=100.0))
    assert talk.effects == []
    (first, *_) = decisions(talk.state, NAME)
    assert first.weight == from_capacity(first.capacity) == from_capacity(1.0)
    assert first.reasons == ("its sources provide no evidence for its speed: its capacity is used",)


def test_composite_reduces_the_fullest_replica() -> None:
    talk = Talk(pool(weighting={"strategy": "composite", "smoothing": 1}))
    for _ in range(10):
        talk.look({name: {"speed": None, "gpu": 0.9 if name == SLOW else 0.3} for name in NAMES})
    assert talk.weights[SLOW] < 0.3 < 1.0 < talk.weights[NAMES[0]]


# ── Stale and missing samples ────────────────────────────────────────────────────────────────────────────────────────


def test_a_stale_replica_returns_to_its_capacity_in_steps() -> None:
    talk = Talk(pool())
    talk.look(halved())
    others = {name: {} for name in NAMES if name != SLOW}
    weights = []
    for _ in range(12):
        talk.look(others)
        weights.append(round(talk.weights[SLOW], 6))
    assert weights == [0.5] * 5 + [0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0]


def test_a_pool_without_metrics_returns_to_its_capacities() -> None:
    talk = Talk(pool())
    talk.look(halved())
    talk.wait(20.0)
    assert talk.mode == "blind"
    assert talk.weights[SLOW] == pytest.approx(0.5)
    talk.wait(60.0)
    assert talk.weights == dict.fromkeys(NAMES, 1.0)


def pool_with_sources(**more: Any) -> Pool:
    return pool(telemetry=Telemetry(sources=(MetricsSource("vllm", "http://{host}:{port}/metrics"),)), **more)


def test_replicas_without_any_sample_become_stale() -> None:
    """For example after a restart with dead exporters: two replicas have sent samples, two never did."""
    talk = Talk(pool_with_sources())
    talk.look({NAMES[0]: {"speed": 1.0}, NAMES[1]: {"speed": 1.0}})
    talk.wait(10.0)
    assert talk.mode == "acting"
    talk.wait(15.0)
    assert talk.mode == "blind"
    assert (
        decisions(talk.state, NAME)[0].mode_reason == "4 of 4 replicas have no fresh samples: weights return to the "
        "configured capacities"
    )


def test_only_new_replicas_with_sources_become_stale() -> None:
    talk = Talk(pool_with_sources())
    for _ in range(4):
        talk.look(all_at())
    bare = tuple(replace(replica(f"bare{place}"), telemetry=Telemetry()) for place in range(6))
    talk.say(FleetChanged(talk.now, (replace(talk.pool, replicas=(*talk.pool.replicas, *bare)),)))
    for _ in range(5):
        talk.look(all_at())
    assert talk.mode == "acting"
    new = tuple(replica(f"new{place}") for place in range(6))
    talk.say(FleetChanged(talk.now, (replace(talk.pool, replicas=(*talk.pool.replicas, *new)),)))
    talk.look(all_at())
    assert talk.mode == "acting", "the replicas are new"
    for _ in range(3):
        talk.look(all_at())
    assert talk.mode == "blind"


def test_delayed_samples_do_not_make_a_weight_oscillate() -> None:
    talk = Talk(pool(telemetry=Telemetry(stale_after=60_000)))
    for _ in range(60):
        now = talk.now + INTERVAL
        news = {name: seen(now - 30.0, speed=0.5 if name == SLOW else 1.0) for name in NAMES}
        talk.say(Observed(now, NAME, news))
    assert talk.weights[SLOW] == pytest.approx(0.5)
    assert len([item for item in talk.effects if isinstance(item, WeightsChanged)]) == 1


def test_weights_freeze_if_most_replicas_look_bad() -> None:
    fleet = tuple(replica(f"r{place}", gpu=f"G{place // 2}") for place in range(6))
    talk = Talk(pool(fleet))
    names = [item.name for item in fleet]
    talk.look({name: {"temperature": 95.0 if place < 4 else 50.0} for place, name in enumerate(names)})
    talk.look({name: {"temperature": 95.0 if place < 4 else 50.0} for place, name in enumerate(names)})
    talk.look({name: {"temperature": 95.0 if place < 4 else 50.0} for place, name in enumerate(names)})
    assert talk.mode == "frozen"
    reason = "4 of 6 replicas look slow, hot or stale: weights do not change"
    assert talk.effects[0] == ModeChanged(NAME, "frozen", reason)
    assert talk.weights == dict.fromkeys(names, 1.0)


# ── Operators and reloads ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_operator_can_freeze_and_unfreeze() -> None:
    talk = Talk(pool())
    talk.say(Froze(talk.now + 1, NAME, "migration"))
    talk.look(halved())
    assert talk.weights[SLOW] == 1.0
    assert decisions(talk.state, NAME)[1].mode_reason == "migration"
    talk.say(Unfroze(talk.now + 1, NAME))
    assert talk.weights[SLOW] == pytest.approx(0.5)


def test_a_reload_keeps_estimates_with_new_capacities() -> None:
    talk = Talk(pool())
    talk.look(halved())
    doubled = tuple(replace(item, capacity=2.0) for item in talk.pool.replicas)
    talk.say(FleetChanged(talk.now + 1, (replace(talk.pool, replicas=doubled),)))
    assert talk.weights == {name: pytest.approx(1.0 if name == SLOW else 2.0) for name in NAMES}


def test_weights_continue_after_a_restart() -> None:
    talk = Talk(pool())
    slow = Weight(rate=0.5, room=1.0, speed=0.5)
    effects = talk.say(FleetChanged(NOW + 1, (replace(talk.pool, name="other"),), {"other": {SLOW: slow}}))
    assert effects == (
        WeightsChanged("other", {name: slow if name == SLOW else from_capacity(1.0) for name in NAMES}, False),
    )


def test_a_new_replica_starts_with_its_full_weight() -> None:
    talk = Talk(pool(slow_start=SlowStart()))
    more = replace(talk.pool, replicas=(*talk.pool.replicas, replica("new")))
    effects = talk.say(FleetChanged(talk.now, (more,)))
    assert effects == (WeightsChanged(NAME, dict.fromkeys((*NAMES, "new"), from_capacity(1.0)), True),)
    talk.wait(60.0)
    assert talk.weights["new"] == 1.0


# ── Rate, room and speed ─────────────────────────────────────────────────────────────────────────────────────────────


def test_slowness_and_wrong_capacity_change_different_parts() -> None:
    members = (*(replica(f"r{place}") for place in range(3)), replica("double", capacity=2.0))
    talk = Talk(pool(members))
    talk.look({"r0": {"speed": 0.5}, "r1": {}, "r2": {}, "double": {}})
    assert talk.given["r0"] == pytest.approx(Weight(rate=0.5, room=1.0, speed=0.5))
    assert talk.given["double"] == pytest.approx(Weight(rate=1.0, room=1.0, speed=1.0))


def test_a_wrong_capacity_of_a_gpu_type_changes_room() -> None:
    fast, slow = [f"h{place}" for place in range(3)], ["t0", "t1"]
    talk = Talk(pool((*map(replica, fast), *(replica(name, gpu="T4") for name in slow))))
    send_varied_work(talk, {name: 0.4 if name in slow else 1.0 for name in (*fast, *slow)})
    assert talk.given["t0"] == pytest.approx(Weight(rate=0.4, room=0.4, speed=1.0))


def test_slowness_and_wrong_capacity_combine() -> None:
    members = (*(replica(f"r{place}") for place in range(3)), replica("both", capacity=2.0))
    talk = Talk(pool(members))
    for _ in range(3):
        talk.look({"r0": {}, "r1": {}, "r2": {}, "both": {"speed": 0.5}})
    assert talk.given["both"] == pytest.approx(Weight(rate=0.5, room=1.0, speed=0.5))


def test_speed_follows_the_weight_down_and_up() -> None:
    talk = Talk(pool(weighting={"smoothing": 1}))
    weights_sent = []
    for speed in (0.2, 0.2, 1.0):
        talk.look(all_at() | {SLOW: {"speed": speed}})
        weights_sent.append(talk.given[SLOW])
    assert weights_sent == [pytest.approx(Weight(rate=rate, room=1.0, speed=rate)) for rate in (0.5, 0.2, 0.3)]
    for _ in range(8):
        talk.look(all_at())
    assert talk.given[SLOW] == from_capacity(1.0)


def test_a_hot_replica_is_held_but_not_slow() -> None:
    talk = Talk(pool())
    for _ in range(6):
        talk.look(all_at() | {SLOW: {"temperature": 99.0}})
    assert talk.given[SLOW] == Weight(rate=0.05, room=1.0, speed=1.0)
    assert talk.given[SLOW].held == pytest.approx(0.05)


def test_composite_load_changes_neither_speed_nor_room() -> None:
    talk = Talk(pool(weighting={"strategy": "composite", "composite": (("queue", 1.0),)}))
    for _ in range(6):
        talk.look(all_at(None, queue=0.0) | {SLOW: {"speed": None, "queue": 50.0}})
    assert talk.weights[SLOW] < 0.5
    assert (talk.given[SLOW].room, talk.given[SLOW].speed) == (1.0, 1.0)


def test_a_slow_replica_at_the_floor_is_sent_once() -> None:
    talk = Talk(pool())
    for look in range(12):
        talk.look(all_at() | {SLOW: {"speed": 0.01 + look % 2 * 0.005}})
    assert talk.given[SLOW] == pytest.approx(Weight(rate=0.05, room=1.0, speed=0.05))
    assert len([item for item in talk.effects if isinstance(item, WeightsChanged)]) == 2


# ── Decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_decision_shows_every_intermediate_number() -> None:
    talk = Talk(pool(weighting={"max_step_down": 30.0}))
    talk.look(all_at(temperature=60.0) | {SLOW: {"speed": 0.5, "temperature": 80.0, "throttle": 1.0}})
    talk.wait(2.0, 2.0)
    decision = decisions(talk.state, NAME)[1]
    assert (decision.replica, decision.strategy, decision.mode, decision.verdict) == (SLOW, "adaptive", "acting", "in")
    assert (decision.normalised, decision.across) == (pytest.approx(-0.6931, abs=1e-4), 0.0)
    assert (decision.proposed, decision.goal) == (pytest.approx(0.5), pytest.approx(0.5))
    assert (decision.limited, decision.decided, decision.weight) == (0.7, 0.7, Weight(0.7, 1.0, pytest.approx(0.7)))
    assert (decision.age, decision.evidence_age) == (2.0, 2.0)
    assert decision.signals["throttle"].value == 1.0
    assert decision.reasons == ("its speed differs from its peers'",)

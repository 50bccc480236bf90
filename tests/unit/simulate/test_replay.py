"""Whole replays: pauses, affinity of the picker, and the control loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbctl.ir.pools import Telemetry, Weighting
from lbctl.simulate.control import SimulatedControlLoop
from lbctl.simulate.replay import Replay
from lbctl.simulate.results import summarise
from lbctl.simulate.setup import SpeedChange
from lbctl.simulate.state import DONE
from lbctl.simulate.trace import Trace
from tests.support.simulate import EASY, load, pool, replayed

PAUSED = Trace([0.0, 1.0, 1e8, 1e8 + 1.0], [10] * 4, [5] * 4)


@pytest.mark.parametrize("policy", ["nginx:least_request", "envoy:pick"])
def test_a_pause_costs_no_steps(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples: list[float] = []
    observe = SimulatedControlLoop.observe

    def counted(loop: SimulatedControlLoop, observations: Any, ejected: Any, now: float) -> None:
        samples.append(now)
        observe(loop, observations, ejected, now)

    monkeypatch.setattr(SimulatedControlLoop, "observe", counted)
    where = replace(pool(1.0, 1.0), telemetry=Telemetry(5_000), weighting=Weighting("adaptive"))
    progress: list[float] = []
    result = replayed(where, PAUSED, policy, cost=EASY, progress=progress.append)
    assert set(result.requests.state) == {DONE}
    assert result.requests.last[3] == pytest.approx(1e8 + 1.05)
    assert len(progress) < 500
    assert len(samples) < 200
    assert [at for at in samples if 1e8 - 60 <= at <= 1e8]


def test_an_answer_may_end_long_after_the_last_arrival() -> None:
    long = Trace([0.0], [10], [200_001])
    assert summarise(replayed(pool(1.0), long, cost=EASY)).total.p99 == pytest.approx(2000, abs=0.1)
    wedged = SpeedChange(1.0, "r0", 0.0), SpeedChange(1e8, "r0", 1.0)
    steps: list[float] = []
    where = replace(pool(1.0), telemetry=Telemetry(5_000))
    resumed = replayed(where, Trace([0.0], [10], [201]), "envoy:pick", *wedged, cost=EASY, progress=steps.append)
    assert resumed.requests.last[0] == pytest.approx(1e8 + 1.0)
    assert len(steps) < 200


def test_pick_sends_a_repeated_prompt_to_the_same_replica() -> None:
    count = 40
    trace = Trace(
        [2.0 * index for index in range(count)],
        [4096] * count,
        [2] * count,
        (),
        [(1, 2, 3, 4, 5, 6, 7, 8)] * count,
        512,
    )
    used = {
        policy: len({int(each) for each in replayed(pool(1.0, 1.0, 1.0, 1.0), trace, policy).requests.replica})
        for policy in ("nginx:pick", "haproxy:pick", "envoy:pick")
    }
    assert used == {"nginx:pick": 1, "haproxy:pick": 1, "envoy:pick": 1}


# ── The control loop ─────────────────────────────────────────────────────────────────────────────────────────────────

WATCHED = replace(
    pool(1.0, 1.0, 1.0, 1.0), telemetry=Telemetry(2_000, stale_after=15_000), weighting=Weighting("adaptive")
)
STEADY = load(1500, 6.0, 800, 100)


def share_of_r1(result: Replay, since: float) -> float:
    """Return the share of requests that r1 gets from then on."""
    late = [at for at in range(1500) if result.requests.arrived[at] >= since]
    return sum(result.requests.replica[at] == 1 for at in late) / len(late)


@pytest.mark.parametrize("policy", ["haproxy:round_robin", "nginx:least_request", "envoy:least_request"])
def test_telemetry_reduces_failures_at_a_wedged_replica(policy: str) -> None:
    wedged = SpeedChange(60.0, "r1", 0.0)
    blind = replayed(replace(WATCHED, telemetry=None), STEADY, policy, wedged)
    watched = replayed(WATCHED, STEADY, policy, wedged)
    assert summarise(watched).failed < 0.7 * summarise(blind).failed
    assert share_of_r1(watched, 120.0) < 0.3 * share_of_r1(blind, 120.0)


def test_a_halved_replica_gets_its_fair_share() -> None:
    halved = SpeedChange(0.0, "r1", 0.5)
    assert share_of_r1(replayed(WATCHED, STEADY, "haproxy:round_robin", halved), 60.0) == pytest.approx(
        0.5 / 3.5, abs=0.04
    )
    blind = replayed(replace(WATCHED, telemetry=None), STEADY, "haproxy:round_robin", halved)
    assert share_of_r1(blind, 60.0) == pytest.approx(0.25, abs=0.02)


def test_late_samples_help_less_and_stale_ones_not_at_all() -> None:
    wedged = SpeedChange(60.0, "r1", 0.0)
    failed = {
        delay: summarise(replayed(WATCHED, STEADY, "haproxy:round_robin", wedged, delay=delay)).failed
        for delay in (1.0, 12.0, 40.0)
    }
    assert failed[1.0] < failed[12.0] < failed[40.0]
    without = summarise(replayed(replace(WATCHED, telemetry=None), STEADY, "haproxy:round_robin", wedged)).failed
    assert failed[40.0] == pytest.approx(without, rel=0.05)

"""The simulated fleet, and the effect of the control loop on it."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from lbctl.ir.pools import Weighting
from lbctl.simulate.engine import Engine, SimulatedRequest, SpeedFault
from lbctl.simulate.run import SimulationResult, run
from lbctl.simulate.scenario import Scenario, SimulatedReplica, heterogeneous, homogeneous, with_static_weights

# Tracing would make hours of simulated time three times as slow.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

HALVED = homogeneous(3, SimulatedReplica(faults=(SpeedFault(60, 1e9, 0.5),)))
PROXIES = ("round_robin", "least_conn", "envoy_w2")
SEED = 7


def multipliers_of(outcome: SimulationResult, replica: int, since: float) -> list[float]:
    """Return the weight of the replica in the proxies, for every second."""
    weights = [outcome.weights(at)[replica] for at in range(int(since), int(outcome.end))]
    return [weight if weight is not None else 0.0 for weight in weights]


def shares(outcome: SimulationResult, replica: int, since: float) -> list[float]:
    """Return the intended share of the replica, for every second."""
    each = [[weight or 0.0 for weight in outcome.weights(at)] for at in range(int(since), int(outcome.end))]
    return [weights[replica] / sum(weights) for weights in each]


def spread(values: list[float]) -> float:
    return statistics.pstdev(values) / statistics.fmean(values)


# ── The model ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_iteration_takes_as_long_as_in_the_profile() -> None:
    engine = Engine(0.5)
    engine.add(SimulatedRequest(0.0, prompt=1000, answer=2))
    end = engine.begin(0.0)
    assert end == pytest.approx((29.8e-3 + 1000 * 0.0715e-3) / 0.5)
    assert engine.end(end) == []
    second = engine.begin(end)
    assert second == pytest.approx(end + (29.8e-3 + 0.202e-3 + 1000 * 1.78e-7) / 0.5)
    (done,) = engine.end(second)
    assert (done.first, done.last) == (end, second)
    assert engine.begin(second) is None


def test_counters_of_a_wedged_engine_are_frozen() -> None:
    engine = Engine(1.0, (SpeedFault(1.0, 31.0, 0.0),))
    engine.add(SimulatedRequest(1.0, prompt=100, answer=2))
    assert engine.begin(1.0) == pytest.approx(31.0 + 29.8e-3 + 100 * 0.0715e-3)
    assert engine.counters.iterations == 0


def test_a_run_depends_only_on_its_seed() -> None:
    scenario = Scenario(homogeneous(2), seconds=60)
    first, same, other = run(scenario, 1), run(scenario, 1), run(scenario, 2)
    assert first == same
    assert first.first_token() != other.first_token()


def test_arrivals_do_not_depend_on_decisions() -> None:
    scenario = Scenario(HALVED, seconds=120)
    first, second = run(scenario, SEED), run(with_static_weights(scenario), SEED)
    assert [item.arrived for item in first.requests[:200]] == [item.arrived for item in second.requests[:200]]


@pytest.mark.parametrize("algorithm", ["round_robin", "envoy_w", "envoy_w2"])
def test_a_replica_with_twice_the_capacity_gets_more(algorithm: str) -> None:
    outcome = run(
        with_static_weights(
            Scenario(homogeneous(2, SimulatedReplica(2.0, 2.0)), load=0.6, seconds=200, algorithm=algorithm)
        ),
        SEED,
    )
    assert outcome.share(2) == pytest.approx(0.5, abs=0.09)


# ── The loop, closed ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("algorithm", PROXIES)
@pytest.mark.parametrize("members", [homogeneous(4), heterogeneous()], ids=["equal", "5:2:1"])
def test_a_healthy_fleet_keeps_its_weights(algorithm: str, members: tuple[SimulatedReplica, ...]) -> None:
    scenario = Scenario(members, load=0.85, algorithm=algorithm)
    assert run(scenario, SEED).first_token() == run(with_static_weights(scenario), SEED).first_token()


@pytest.mark.parametrize("algorithm", PROXIES)
def test_a_halved_replica_gets_its_fair_share_in_half_a_minute(algorithm: str) -> None:
    outcome = run(Scenario(HALVED, algorithm=algorithm), SEED)
    assert set(outcome.weights(60.0)) == {1.0}
    weights = [weight or 0.0 for weight in outcome.weights(90.0)]
    assert weights[3] / sum(weights) == pytest.approx(0.5 / 3.5, abs=0.05)


@pytest.mark.parametrize("algorithm", PROXIES)
def test_adaptive_weights_reduce_latency_of_a_halved_replica(algorithm: str) -> None:
    scenario = Scenario(HALVED, algorithm=algorithm)
    with_loop, without = run(scenario, SEED), run(with_static_weights(scenario), SEED)
    assert with_loop.per_token(since=100) < 0.85 * without.per_token(since=100)
    assert with_loop.first_token(since=100) < without.first_token(since=100)


@pytest.mark.parametrize("delay", [1.0, 15.0, 30.0])
@pytest.mark.parametrize("algorithm", PROXIES)
def test_delayed_samples_do_not_make_weights_oscillate(algorithm: str, delay: float) -> None:
    scenario = Scenario(HALVED, algorithm=algorithm, delay=delay, stale_after=60, seconds=400)
    steady = shares(run(scenario, SEED), 3, since=200)
    assert statistics.fmean(steady) == pytest.approx(0.5 / 3.5, abs=0.03)
    assert spread(steady) <= 0.05


@pytest.mark.parametrize("count", [1, 8, 32])
def test_the_number_of_proxies_does_not_matter(count: int) -> None:
    outcome = run(Scenario(HALVED, proxies=count, algorithm="envoy_w2"), SEED)
    assert outcome.weights(290.0)[3] == pytest.approx(0.5, abs=0.12)


def test_lost_samples_and_noise_move_no_weight() -> None:
    scenario = Scenario(homogeneous(4), load=0.85, loss=0.3, noise=0.1)
    assert {weight for replica in range(4) for weight in multipliers_of(run(scenario, SEED), replica, 30)} == {1.0}


def test_a_capacity_wrong_by_a_factor_of_two_is_corrected() -> None:
    double = run(Scenario(homogeneous(3, SimulatedReplica(capacity=2.0)), algorithm="round_robin"), SEED)
    half = run(Scenario(homogeneous(3, SimulatedReplica(capacity=0.5)), algorithm="round_robin"), SEED)
    assert double.weights(250.0)[3] == pytest.approx(1.0, abs=0.15)
    assert half.weights(250.0)[3] == pytest.approx(1.0, abs=0.15)


def test_a_flapping_replica_moves_at_most_one_step_per_interval() -> None:
    faults = tuple(SpeedFault(60.0 + 20 * turn, 70.0 + 20 * turn, 0.3) for turn in range(12))
    values = multipliers_of(run(Scenario(homogeneous(3, SimulatedReplica(faults=faults))), SEED), 3, 30)
    moves = [after - before for before, after in zip(values[::5], values[5::5], strict=False)]
    assert max(moves) <= 0.1 + 0.1 + 1e-9
    assert min(moves) >= -0.5 - 1e-9


def test_a_wedged_engine_is_ejected_in_time_and_returns() -> None:
    members = homogeneous(3, SimulatedReplica(faults=(SpeedFault(100, 160, 0.0),)))
    outcome = run(Scenario(members, load=0.6, algorithm="round_robin"), SEED)
    out = [at for at, weights in outcome.history if weights[3] is None]
    assert out
    assert min(out) <= 100 + 15 + 2 * 5 + 1
    assert outcome.weights(out[-1] + 120)[3] is not None
    assert not [item for item in outcome.requests if item.replica == 3 and min(out) + 1 < item.arrived < 160]


def test_nginx_is_reloaded_for_slow_but_not_flapping_replicas() -> None:
    slow = run(Scenario(HALVED, algorithm="least_conn_reloaded", push_every=30.0), SEED)
    reloads = [at for at, _ in slow.history[1:]]
    assert 90 <= reloads[0] <= 150
    assert len(reloads) <= 3
    assert slow.weights(reloads[0])[3] == pytest.approx(0.5, abs=0.15)
    faults = tuple(SpeedFault(60.0 + 40 * turn, 80.0 + 40 * turn, 0.25) for turn in range(6))
    flapping = Scenario(
        homogeneous(3, SimulatedReplica(faults=faults)), algorithm="least_conn_reloaded", push_every=30.0
    )
    assert len(run(flapping, SEED).history) == 1


def test_static_weights_are_static() -> None:
    scenario = Scenario(HALVED, weighting=Weighting(strategy="static"))
    assert {weights for _, weights in run(scenario, SEED).history} == {(1.0, 1.0, 1.0, 1.0)}


def test_changes_are_batched_for_a_reloaded_proxy() -> None:
    history = run(replace(Scenario(HALVED), push_every=30.0), SEED).history
    times = [at for at, _ in history]
    assert min(after - before for before, after in pairwise(times)) >= 30.0

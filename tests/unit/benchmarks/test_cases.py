"""The cases of the comparison with peers: enough requests, and the load and the faults that their texts state."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers import checks, systems
from tests.benchmarks.peers.cases import AGENTS, CASES, Case
from tests.benchmarks.peers.engines import CURVE
from tests.benchmarks.peers.trial import SEEDS
from tests.benchmarks.peers.workloads import FLOOD, PREFIXED, SEQUENCES, TENANT_LIMIT, TENANTS, UNRELATED, capacity

_OVERHEAD = 14.0
"""Seconds of a run for the start, the last answers and the end."""
_GENERATED = [case for case in CASES if not case.trace]


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("case", _GENERATED, ids=lambda case: case.name)
def test_each_system_has_2000_counted_requests(case: Case) -> None:
    assert sum(case.counts(item) for seed in range(SEEDS) for item in case.plan(seed)) >= 2000


def test_all_cases_take_at_most_an_hour() -> None:
    runs = [case.seconds + _OVERHEAD for case in CASES for is_slow in {it.is_slow for it in systems.of(case)}]
    assert SEEDS * sum(runs) <= 3600


def test_seeds_differ_and_a_seed_is_repeatable() -> None:
    case = _case("mixed-70")
    assert case.plan(0) == case.plan(0) != case.plan(1)


@pytest.mark.parametrize(
    ("name", "lengths"), [("mixed-85", UNRELATED), ("equal-85", UNRELATED), ("prefixes-150", PREFIXED)]
)
def test_rate_is_the_load_times_the_capacity(name: str, lengths: tuple[float, float]) -> None:
    case = _case(name)
    sent = sum(len(case.arrivals(seed)) for seed in range(SEEDS)) / SEEDS
    assert sent / case.seconds == pytest.approx(case.load * capacity(case.replicas, *lengths), rel=0.06)


def test_prefixes_are_as_long_as_the_description_states() -> None:
    first, *_ = _case("prefixes-50").arrivals(0)
    assert (first.prompt, len(first.blocks) * 512, first.answer) == (7200, 6144, 100)


def test_turns_of_an_agent_contain_the_earlier_turns() -> None:
    last: dict[str | None, tuple[int, ...]] = {}
    for item in AGENTS.arrivals(0):
        before = last.get(item.session, ())
        assert item.blocks[: len(before)] == before
        last[item.session] = item.blocks


def test_flood_is_ten_times_a_tenant_and_does_not_count() -> None:
    case = _case("flood")
    plan = case.plan(0)
    flood = sum(item.session == FLOOD for item in plan)
    assert flood / (len(plan) - flood) == pytest.approx(10 / TENANTS, rel=0.15)
    assert not any(case.counts(item) for item in plan if item.session == FLOOD)
    assert round(60 * capacity(case.replicas) / (TENANTS + 1)) == TENANT_LIMIT


def test_burst_is_four_times_the_usual_rate() -> None:
    case = _case("burst")
    times = [item.at for seed in range(SEEDS) for item in case.arrivals(seed)]
    begin, end = case.seconds / 3, case.seconds / 3 + 4
    inside = sum(begin <= at < end for at in times)
    assert inside / 4 == pytest.approx(4 * (len(times) - inside) / (case.seconds - 4), rel=0.1)


def test_upgrade_stops_one_replica_after_another() -> None:
    events = sorted(_case("upgrade").events, key=lambda event: event.at)
    assert [(event.command, event.replica) for event in events] == [
        (command, number) for number in range(3) for command in ("drain", "kill", "start")
    ]
    assert events[-1].at < 1


def test_upgrade_leaves_time_for_checks_and_answers() -> None:
    case = _case("upgrade")
    drain, kill, _, second, *_ = (event.at * case.seconds for event in sorted(case.events, key=lambda event: event.at))
    longest = max(item.answer for item in case.arrivals(0))
    seconds_per_token = (CURVE.a + CURVE.b * SEQUENCES + CURVE.c * SEQUENCES * sum(UNRELATED)) / case.replicas[0]
    assert kill - drain > checks.INTERVAL * checks.FAILURES + longest * seconds_per_token
    assert second - kill > checks.INTERVAL


def test_only_unknown_shares_are_left_out() -> None:
    assert {case.name for case in CASES if case.has_shares} == {
        "mixed-50", "mixed-70", "mixed-85", "equal-85", "halved",
    }  # fmt: skip

"""What the proxies report: totals, the shares of the last minute, and what is unknown."""

from __future__ import annotations

from lbctl.serve.traffic.ledger import STALE_AFTER, WINDOW, Condition, Counts, ReplicaKey, TrafficLedger

A, B = ReplicaKey("llama", "a"), ReplicaKey("llama", "b")


def test_shares_are_of_the_last_minute_and_of_all_proxies() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(100)}, 0.0)
    ledger.add("edge", {A: Counts(30), B: Counts(10)}, WINDOW + 10)
    ledger.add("site", {B: Counts(40)}, WINDOW + 10)
    assert ledger.shares("llama", WINDOW + 10) == {"a": 30 / 80, "b": 50 / 80}
    assert ledger.shares("llama", WINDOW + 10, "edge") == {"a": 0.75, "b": 0.25}
    assert ledger.shares("other", WINDOW + 10) == {}
    assert ledger.pool_totals() == {"llama": Counts(180)}


def test_a_silent_proxy_is_unknown_and_its_totals_stay() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(10, 2)}, 0.0)
    ledger.set_in_flight("edge", {A: 3}, 0.0)
    ledger.set_conditions("edge", {A: Condition("down", "Layer4 timeout")}, 0.0)
    assert ledger.in_flight(A, 1.0) == 3
    assert ledger.conditions(A, 1.0) == {"edge": Condition("down", "Layer4 timeout")}
    late = STALE_AFTER + 1
    assert ledger.reporting(late) == frozenset()
    assert ledger.in_flight(A, late) is None
    assert ledger.conditions(A, late) == {}
    assert ledger.shares("llama", late) == {}
    assert ledger.pool_totals() == {"llama": Counts(10, 2)}


def test_a_proxy_that_says_its_conditions_alone_does_not_report_its_requests() -> None:
    ledger = TrafficLedger()
    ledger.set_conditions("edge", {A: Condition("up")}, 0.0)
    assert ledger.reporting(0.0) == frozenset()
    ledger.add("edge", {A: Counts(10)}, 0.0)
    ledger.set_in_flight("edge", {A: 3}, 0.0)
    late = STALE_AFTER + 1
    ledger.set_conditions("edge", {A: Condition("down")}, late)
    assert ledger.reporting(late) == frozenset()
    assert ledger.in_flight(A, late) is None
    assert ledger.conditions(A, late) == {"edge": Condition("down")}
    ledger.add("edge", {}, 2 * late)
    assert ledger.reporting(2 * late) == {"edge"}
    assert ledger.conditions(A, 2 * late) == {}


def test_requests_in_flight_that_no_proxy_reports_are_unknown_and_not_zero() -> None:
    ledger = TrafficLedger()
    ledger.set_in_flight("edge", {A: 0}, 0.0)
    assert ledger.in_flight(A, 0.0) == 0
    assert ledger.in_flight(B, 0.0) is None


def test_a_removed_proxy_is_forgotten() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(10)}, 0.0)
    ledger.keep(["site"])
    assert ledger.totals() == {}

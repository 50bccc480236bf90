"""The ledger of proxy reports: totals, shares of the last minute, and unknown values."""

from __future__ import annotations

from lbctl.control.analysis.latency import LatencyHistogram
from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.rollout_metrics import LatencyKey
from lbctl.serve.traffic.ledger import STALE_AFTER, WINDOW, Counts, ReplicaKey, TrafficLedger, Unanswered

A, B = ReplicaKey("llama", "a"), ReplicaKey("llama", "b")


def test_recent_requests_cover_the_last_minute_of_all_proxies() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(100)}, 0.0)
    ledger.add("edge", {A: Counts(30), B: Counts(10)}, WINDOW + 10)
    ledger.add("site", {B: Counts(40)}, WINDOW + 10)
    assert ledger.recent(WINDOW + 10) == {A: 30, B: 50}
    assert ledger.recent(WINDOW + 10, "edge") == {A: 30, B: 10}
    assert sum(each.requests for each in ledger.totals().values()) == 180


def test_silent_proxy_is_unknown_and_its_totals_stay() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(10, 2)}, 0.0)
    ledger.set_in_flight("edge", {A: 3}, 0.0)
    ledger.set_conditions("edge", {A: ReplicaCondition("down", "Layer4 timeout")}, 0.0)
    assert ledger.in_flight(A, 1.0) == 3
    assert ledger.conditions(A, 1.0) == {"edge": ReplicaCondition("down", "Layer4 timeout")}
    late = STALE_AFTER + 1
    assert ledger.reporting(late) == frozenset()
    assert ledger.in_flight(A, late) is None
    assert ledger.conditions(A, late) == {}
    assert ledger.recent(late) == {}
    assert ledger.totals() == {("edge", A): Counts(10, 2)}


def test_proxy_with_only_conditions_does_not_report_requests() -> None:
    ledger = TrafficLedger()
    ledger.set_conditions("edge", {A: ReplicaCondition("up")}, 0.0)
    assert ledger.reporting(0.0) == frozenset()
    ledger.add("edge", {A: Counts(10)}, 0.0)
    ledger.set_in_flight("edge", {A: 3}, 0.0)
    late = STALE_AFTER + 1
    ledger.set_conditions("edge", {A: ReplicaCondition("down")}, late)
    assert ledger.reporting(late) == frozenset()
    assert ledger.in_flight(A, late) is None
    assert ledger.conditions(A, late) == {"edge": ReplicaCondition("down")}
    ledger.add("edge", {}, 2 * late)
    assert ledger.reporting(2 * late) == {"edge"}
    assert ledger.conditions(A, 2 * late) == {}


def test_requests_in_flight_are_summed_over_reporting_proxies() -> None:
    ledger = TrafficLedger()
    ledger.set_in_flight("edge", {A: 3, B: 1}, 0.0)
    ledger.set_in_flight("site", {A: 2}, 5.0)
    assert (ledger.in_flight(A, 5.0), ledger.in_flight_known_by(A, 5.0)) == (5, 2)
    ledger.set_in_flight("edge", {A: 1}, 6.0)
    assert (ledger.in_flight(A, 6.0), ledger.in_flight(B, 6.0)) == (3, None)
    assert (ledger.in_flight(A, STALE_AFTER + 5.5), ledger.in_flight_known_by(A, STALE_AFTER + 5.5)) == (1, 1)
    ledger.lost("edge")
    assert ledger.in_flight(A, STALE_AFTER + 5.5) is None
    ledger.keep([])
    assert ledger.in_flight(A, 7.0) is None


def test_unreported_requests_in_flight_are_unknown() -> None:
    ledger = TrafficLedger()
    ledger.set_in_flight("edge", {A: 0}, 0.0)
    assert ledger.in_flight(A, 0.0) == 0
    assert ledger.in_flight(B, 0.0) is None


def test_requests_without_an_answer_count_until_the_next_one() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(2, 2), B: Counts(2, 1)}, 1.0)
    ledger.add("site", {A: Counts(3)}, 5.0, ())
    assert ledger.unanswered(A, 6.0) == Unanswered(1.0, 5, 5.0), "the clients of site have left"
    assert ledger.unanswered(B, 6.0) is None
    ledger.add("site", {}, 7.0, [A])
    assert ledger.unanswered(A, 8.0) == Unanswered(7.0, 2, 1.0), "an answer has begun"
    ledger.add("edge", {A: Counts(1)}, 9.0)
    assert ledger.unanswered(A, 9.0) is None
    assert ledger.answered_at(A) == 9.0
    ledger.add("edge", {A: Counts(1, 1)}, 10.0)
    assert ledger.unanswered(A, 11.0 + STALE_AFTER) is None, "the proxy is silent"


def test_streams_that_end_were_answered() -> None:
    ledger = TrafficLedger()
    ledger.set_in_flight("edge", {A: 1}, 0.0)
    ledger.add("edge", {A: Counts(1)}, 1.0, ())
    assert ledger.unanswered(A, 1.0) is None, "its answer had begun before the first report"
    ledger.add("edge", {}, 2.0, [A])
    ledger.set_in_flight("edge", {A: 3}, 2.0)
    ledger.set_in_flight("edge", {A: 5}, 7.0)
    ledger.add("edge", {A: Counts(2)}, 12.0, ())
    ledger.add("edge", {A: Counts(3)}, 17.0, ())
    assert ledger.unanswered(A, 17.0) == Unanswered(7.0, 2, 17.0), "two waited from 7.0 on"
    ledger.set_in_flight("edge", {A: 0}, 17.0)
    assert ledger.unanswered(A, 20.0) == Unanswered(7.0, 2, 17.0)


def test_removed_replicas_and_unused_latencies_are_forgotten() -> None:
    ledger = TrafficLedger()
    first, last = LatencyKey("llama", "first_byte"), LatencyKey("llama", "total")
    ledger.add("edge", {A: Counts(10), B: Counts(5)}, 0.0)
    ledger.add_latencies("edge", {first: {3: 2}, last: {9: 2}}, 0.0)
    ledger.add_latencies("edge", {first: {3: 1, 4: 1}}, 1.0)
    assert ledger.latencies({first}) == {("edge", first): LatencyHistogram({3: 3, 4: 1})}
    ledger.keep_replicas({B}, {last})
    assert ledger.totals() == {("edge", B): Counts(5)}
    assert ledger.latencies({first, last}) == {("edge", last): LatencyHistogram({9: 2})}


def test_removed_proxy_is_forgotten() -> None:
    ledger = TrafficLedger()
    ledger.add("edge", {A: Counts(10)}, 0.0)
    ledger.keep(["site"])
    assert ledger.totals() == {}

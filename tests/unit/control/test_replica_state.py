"""The state of a replica: which cause takes precedence, and what the reason names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import EffectiveReplica, ReplicaStatus
from lbctl.control.fitness import lacks_fit_replica
from lbctl.control.health import ASLEEP, DeepHealth, Level
from lbctl.control.replica_state import IN, ReplicaCondition, ReplicaFacts, StateWithReason, state_of
from lbctl.ir.weight import Weight, from_capacity
from lbctl.serve.api.replica_times import StateTimes
from lbctl.serve.traffic.ledger import ReplicaKey
from tests.support.control import replica

REFUSED = CheckState(out=True, since=0.0, reason="connection refused", at=0.0)
CONNECTED = CheckState(out=False, since=0.0, at=0.0, passed=True)


def facts(
    status: ReplicaStatus = "in", *reasons: str, weight: Weight | None = None, capacity: float = 1.0, **more: Any
) -> ReplicaFacts:
    """Return the facts of a replica with this composed status."""
    item = replica("a", capacity=capacity)
    effective = EffectiveReplica(item, weight or from_capacity(capacity), 1.0, status, reasons, None)
    return ReplicaFacts(effective, carriers=more.pop("carriers", 1), **{"connection": CONNECTED, **more})


def test_replica_with_full_weight_is_in_without_reason() -> None:
    assert state_of(facts()) == StateWithReason("in")
    assert state_of(facts(weight=Weight(0.95, 1.0, 0.95))) == StateWithReason("in")
    assert state_of(
        facts(conditions={"ha": ReplicaCondition("up")}, check=replace(REFUSED, out=False))
    ) == StateWithReason("in")


def test_drained_replica_is_draining_while_it_has_requests() -> None:
    cause = "drained by an operator: swap"
    assert state_of(facts("drained", cause, in_flight=3)) == StateWithReason(
        "draining", f"{cause}; 3 requests in flight"
    )
    assert state_of(facts("drained", cause, in_flight=1)) == StateWithReason(
        "draining", f"{cause}; 1 request in flight"
    )
    known = facts("drained", cause, in_flight=0, in_flight_known_by=1, connected=1)
    assert state_of(known) == StateWithReason("drained", cause)
    assert state_of(facts("drained", cause, carriers=0)) == StateWithReason("drained", cause), "no proxy has it"
    left = facts("drained", cause, in_flight=0, in_flight_known_by=1, carriers=2, connected=1)
    assert state_of(left) == StateWithReason(
        "drained", f"{cause}; no requests in flight at 1 of 2 proxies, unknown at the others"
    ), "the other proxy is not connected"
    partly_known = facts("drained", cause, in_flight=0, in_flight_known_by=2, carriers=3, connected=3)
    assert state_of(partly_known) == StateWithReason(
        "draining", f"{cause}; no requests in flight at 2 of 3 proxies, unknown at the others"
    )
    assert state_of(facts("drained", cause)) == StateWithReason(
        "draining", f"{cause}; its requests in flight are unknown"
    )
    removed = facts("removed", "its drain deadline has passed", "drained by the files", check=REFUSED)
    assert state_of(removed) == StateWithReason("removed", "its drain deadline has passed; drained by the files")


def test_drain_waits_for_proxies_and_for_a_newer_report() -> None:
    cause = "drained by the files"
    reported: dict[str, Any] = {"in_flight": 0, "in_flight_known_by": 2, "connected": 2}
    missing = facts("drained", cause, **reported, not_drained_by=("ha",))
    assert state_of(missing) == StateWithReason("draining", f"{cause}; not applied yet by ha")
    old = facts("drained", cause, **reported, in_flight_is_old=True)
    assert state_of(old).name == "draining"
    assert state_of(old).reason.endswith("the proxies have not reported its in-flight requests since then")
    assert [item.is_idle for item in (missing, old)] == [False, False]
    assert facts("drained", cause, **reported).is_idle is True
    assert facts("drained", cause, **{**reported, "in_flight_known_by": 1}).is_idle is None
    assert facts("drained", cause, **{**reported, "connected": 0}).is_idle is None
    assert facts(**reported).is_idle is None


def test_reason_names_the_check_that_keeps_requests_away() -> None:
    assert state_of(facts("ejected", "XID 79", check=REFUSED)) == StateWithReason(
        "ejected", "ejected by deep health: XID 79"
    )
    assert state_of(facts(check=REFUSED, checked_for=("site",))) == StateWithReason(
        "down", "lbctl's active check for site fails: connection refused"
    )
    both = facts(check=REFUSED, checked_for=("site",), conditions={"ha": ReplicaCondition("down", "L4CON")}, carriers=2)
    assert state_of(both).reason == (
        "lbctl's active check for site fails: connection refused; the active check of ha (1 of 2 proxies) fails: L4CON"
    )
    down, up = ReplicaCondition("down", "L4CON"), ReplicaCondition("up")
    assert state_of(facts(conditions={"ha": down}, weight=Weight(0.3, 1.0, 0.3))) == StateWithReason(
        "down", "the active check of ha fails: L4CON"
    )
    assert state_of(facts(conditions={"e1": down, "e2": up, "e3": down}, carriers=3)) == StateWithReason(
        "down", "the active check of e1, e3 (2 of 3 proxies) fails: L4CON"
    )
    assert state_of(
        facts(conditions={"e1": ReplicaCondition("ejected", "5 × 5xx"), "e2": up}, carriers=2)
    ) == StateWithReason("ejected", "ejected by the passive check of e1 (1 of 2 proxies): 5 × 5xx")
    assert state_of(facts(conditions={"ha": ReplicaCondition("draining")})) == StateWithReason(
        "draining", "ha sends it no new requests"
    )


def test_agent_explains_the_failed_check_of_a_proxy() -> None:
    down, up = ReplicaCondition("down"), ReplicaCondition("up")
    assert state_of(facts(conditions={"e1": down}, agent_reason="status 503: XID 79")) == StateWithReason(
        "down", "the active check of e1 fails; lbctl's check of its agent: status 503: XID 79"
    )
    assert state_of(facts(conditions={"e1": up}, agent_reason="no response within 1 s")) == IN


def test_sleeping_replica_is_asleep_even_if_its_checks_pass() -> None:
    assert state_of(facts("asleep", ASLEEP, conditions={"ha": ReplicaCondition("up")}, passed_by=1)) == StateWithReason(
        "asleep", "its engine is asleep; it gets requests when it is awake"
    )


def test_replica_with_unfinished_first_checks_is_starting() -> None:
    new = facts(check=replace(REFUSED, at=None), checked_for=("site",))
    assert state_of(new) == StateWithReason("starting", "lbctl's active check for site has no result yet")
    rising, up = ReplicaCondition("starting", "L7OK, 1 of 2 required checks passed"), ReplicaCondition("up")
    both = facts(conditions={"ha": rising, "e1": up}, carriers=2, passed_by=1)
    assert state_of(both) == StateWithReason(
        "starting",
        "not all of the first active checks by ha (1 of 2 proxies) have passed yet: "
        "L7OK, 1 of 2 required checks passed",
    )
    assert state_of(facts(conditions={"ha": rising, "e1": ReplicaCondition("down")}, carriers=2)).name == "down"


def test_state_names_the_cause_of_a_lower_weight() -> None:
    assert state_of(facts(weight=Weight(1.0, 3.0, 1 / 3), capacity=3.0)) == StateWithReason(
        "slow", "three times slower than its peers"
    )
    assert state_of(facts(weight=Weight(0.4, 1.0, 0.4))) == StateWithReason("slow", "2.5 times slower than its peers")
    assert state_of(facts(weight=Weight(0.7, 1.0, 0.7))) == StateWithReason("slow", "30% slower than its peers")
    assert state_of(facts(weight=Weight(0.5, 0.5))) == StateWithReason("hot", "it has room for 50% of its capacity")
    assert state_of(facts(weight=Weight(0.5, 1.0), is_composite=True)).name == "hot"
    assert state_of(facts(weight=Weight(0.5, 1.0))) == StateWithReason(
        "ramping", "its weight changes in limited steps: 50% of its capacity"
    )
    hot = DeepHealth(temperature=Level(exceeded=True))
    assert state_of(facts(health=hot)) == StateWithReason("hot", "temperature above the limit")
    trial = DeepHealth(phase="trial", reasons=("on trial",))
    assert state_of(facts(health=trial)) == StateWithReason("ramping", "at the floor weight: on trial")
    assert state_of(facts(ramps={"site": 0.5})) == StateWithReason(
        "ramping", "slow start: site gives it 50% of its weight"
    )


def test_unreachable_replica_is_never_in() -> None:
    refused = replace(REFUSED, passed=True)
    unreachable = {"connection": refused, "connection_age": 1.0}
    down = StateWithReason("down", "lbctl cannot connect: connection refused")
    assert state_of(facts(**unreachable)) == down
    assert state_of(facts(**unreachable, passed_by=2)).reason == (
        f"{down.reason}; 2 proxies still send requests to it, because the active check there passes"
    )
    assert state_of(facts(**unreachable, answered_age=3.0)) == down, "it was answered before"
    assert state_of(facts(connection=None)) == StateWithReason(
        "unknown", "no check has run, and no proxy has reported a response from it"
    )
    assert state_of(facts(connection=replace(CONNECTED, at=None))).name == "unknown"
    assert state_of(facts(connection=None, answered_age=100.0, weight=Weight(0.5, 0.5))).name == "unknown"


def test_replica_that_answers_nothing_is_unknown() -> None:
    assert state_of(facts(unanswered_for=30.0, passed_by=1)) == StateWithReason(
        "unknown", "requests are being sent to it, but for more than 30 s none has succeeded"
    )
    assert state_of(facts(unanswered_for=30.0, connection=REFUSED)).name == "down"


def test_replica_that_a_proxy_reaches_is_in_whatever_lbctl_finds() -> None:
    never = {"connection": REFUSED, "connection_age": 1.0}
    assert state_of(facts(**never, passed_by=1)).name == "in", "another network, or a path of the proxy's machine"
    assert state_of(facts(connection=replace(REFUSED, passed=True), connection_age=61.0, passed_by=1)).name == "in"
    assert state_of(facts(connection=REFUSED, connection_age=40.0, answered_age=3.0)).name == "in"
    assert state_of(facts(connection=None, answered_age=3.0)).name == "in"
    assert state_of(facts(connection=None, check=replace(REFUSED, out=False))).name == "in"
    assert state_of(facts(connection=None, passed_by=1)).name == "in"


def test_pool_lacks_a_fit_replica_unless_one_may_answer() -> None:
    assert lacks_fit_replica([])
    assert lacks_fit_replica(["down", "drained", "ejected", "asleep", "removed", "draining", "starting"])
    assert not lacks_fit_replica(["down", "slow"])
    assert not lacks_fit_replica(["unknown"])


def test_weight_override_does_not_change_the_state() -> None:
    assert state_of(facts(weight=from_capacity(0.1), is_held=True)) == StateWithReason("in")
    assert state_of(facts(weight=from_capacity(0.1), is_held=True, check=REFUSED)).name == "down"


def test_state_keeps_the_time_of_its_last_change() -> None:
    times, key = StateTimes(), ReplicaKey("llama", "a")
    assert times.since(key, "in", 1.0) is None
    assert times.since(key, "down", 2.0) == 2.0
    assert times.since(key, "down", 3.0) == 2.0
    assert times.since(key, "in", 4.0) == 4.0
    times.keep([])
    assert times.since(key, "slow", 5.0) == 5.0

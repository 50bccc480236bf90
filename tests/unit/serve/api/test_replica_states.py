"""The one state of a replica: which cause wins, and what its sentence names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lbctl.control.compose import EffectiveReplica, ReplicaStatus
from lbctl.control.health import Health, Level
from lbctl.ir.weight import Weight, from_capacity
from lbctl.serve.api.replica_states import ReplicaFacts, State, StateTimes, state_of
from lbctl.serve.health.thresholds import CheckState
from lbctl.serve.traffic.ledger import Condition, ReplicaKey
from tests.support.control import replica

REFUSED = CheckState(out=True, since=0.0, reason="connection refused", at=0.0)


def facts(
    status: ReplicaStatus = "in", *reasons: str, weight: Weight | None = None, capacity: float = 1.0, **more: Any
) -> ReplicaFacts:
    """The facts of a replica with this composed status."""
    item = replica("a", capacity=capacity)
    effective = EffectiveReplica(item, weight or from_capacity(capacity), 1.0, status, reasons, None)
    return ReplicaFacts(effective, carriers=more.pop("carriers", 1), **more)


def test_a_replica_with_its_full_weight_is_in_and_needs_no_reason() -> None:
    assert state_of(facts()) == State("in")
    assert state_of(facts(weight=Weight(0.95, 1.0, 0.95))) == State("in")
    assert state_of(facts(conditions={"ha": Condition("up")}, check=replace(REFUSED, out=False))) == State("in")


def test_a_drained_replica_is_draining_while_requests_are_known_to_be_in_flight() -> None:
    why = "drained by an operator: swap"
    assert state_of(facts("drained", why, in_flight=3)) == State("draining", f"{why}; 3 requests in flight")
    assert state_of(facts("drained", why, in_flight=1)) == State("draining", f"{why}; 1 request in flight")
    assert state_of(facts("drained", why, in_flight=0, in_flight_known_by=1)) == State("drained", why)
    partly = facts("drained", why, in_flight=0, in_flight_known_by=2, carriers=3)
    assert state_of(partly).reason == f"{why}; no requests in flight at 2 of 3 proxies, not known at the others"
    assert state_of(facts("drained", why)) == State("drained", f"{why}; its requests in flight are not known")
    removed = facts("removed", "its drain deadline has passed", "drained by the files", check=REFUSED)
    assert state_of(removed) == State("removed", "its drain deadline has passed; drained by the files")


def test_who_keeps_requests_away_is_named() -> None:
    assert state_of(facts("ejected", "XID 79", check=REFUSED)) == State("ejected", "ejected by deep health: XID 79")
    assert state_of(facts(check=REFUSED, checked_for=("site",))) == State(
        "down", "the active check of lbctl for site fails: connection refused"
    )
    assert state_of(facts(check=replace(REFUSED, at=None), checked_for=("site",))).reason == (
        "the active check of lbctl for site has no result yet"
    )
    both = facts(check=REFUSED, checked_for=("site",), conditions={"ha": Condition("down", "L4CON")}, carriers=2)
    assert state_of(both).reason == (
        "the active check of lbctl for site fails: connection refused; "
        "the active check of ha (1 of 2 proxies) fails: L4CON"
    )
    down, up = Condition("down", "L4CON"), Condition("up")
    assert state_of(facts(conditions={"ha": down}, weight=Weight(0.3, 1.0, 0.3))) == State(
        "down", "the active check of ha fails: L4CON"
    )
    assert state_of(facts(conditions={"e1": down, "e2": up, "e3": down}, carriers=3)) == State(
        "down", "the active check of e1, e3 (2 of 3 proxies) fails: L4CON"
    )
    assert state_of(facts(conditions={"e1": Condition("ejected", "5 × 5xx"), "e2": up}, carriers=2)) == State(
        "ejected", "ejected by the passive check of e1 (1 of 2 proxies): 5 × 5xx"
    )
    assert state_of(facts(conditions={"ha": Condition("draining")})) == State("draining", "ha sends it no new requests")


def test_a_lower_weight_has_its_cause_as_state() -> None:
    assert state_of(facts(weight=Weight(1.0, 3.0, 1 / 3), capacity=3.0)) == State(
        "slow", "three times slower than its peers"
    )
    assert state_of(facts(weight=Weight(0.4, 1.0, 0.4))) == State("slow", "2.5 times slower than its peers")
    assert state_of(facts(weight=Weight(0.7, 1.0, 0.7))) == State("slow", "30% slower than its peers")
    assert state_of(facts(weight=Weight(0.5, 0.5))) == State("hot", "it has room for 50% of what its capacity says")
    assert state_of(facts(weight=Weight(0.5, 1.0), is_composite=True)).name == "hot"
    assert state_of(facts(weight=Weight(0.5, 1.0))) == State(
        "ramping", "its weight moves in bounded steps: 50% of its capacity"
    )
    hot = Health(temperature=Level(exceeded=True))
    assert state_of(facts(health=hot)) == State("hot", "above the limit of temperature")
    trial = Health(phase="trial", reasons=("on trial",))
    assert state_of(facts(health=trial)) == State("ramping", "at the floor weight: on trial")
    assert state_of(facts(ramps={"site": 0.5})) == State("ramping", "slow start: site gives it 50% of its weight")


def test_a_weight_that_an_operator_holds_is_no_fault_of_the_replica() -> None:
    assert state_of(facts(weight=from_capacity(0.1), is_held=True)) == State("in")
    assert state_of(facts(weight=from_capacity(0.1), is_held=True, check=REFUSED)).name == "down"


def test_the_time_of_a_state_is_that_of_its_change() -> None:
    times, key = StateTimes(), ReplicaKey("llama", "a")
    assert times.since(key, "in", 1.0) is None
    assert times.since(key, "down", 2.0) == 2.0
    assert times.since(key, "down", 3.0) == 2.0
    assert times.since(key, "in", 4.0) == 4.0
    times.keep([])
    assert times.since(key, "slow", 5.0) == 5.0

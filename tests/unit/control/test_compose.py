"""What proxies get: everything that acts on a replica, laid over the fleet in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lbctl.control.compose import Composed, EffectiveReplica, ForProxy, compose, for_proxy, weight_changes
from lbctl.control.drains import Since
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override, checked_weight
from lbctl.control.slow_start import Ramps
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica, SlowStart, Telemetry
from lbctl.ir.routes import Forward, Route, Share
from lbctl.ir.snapshot import Snapshot, drained_of
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, from_capacity

NOW = 1_000.0
SLOW = Weight(rate=0.5, room=1.0, speed=0.5)


def fleet(*replicas: Replica, **more: Any) -> Snapshot:
    telemetry = Telemetry(sources=({},))  # type: ignore[arg-type]  # any source makes it a pool that is watched
    return Snapshot(Topology((), (), (Pool("p", replicas, telemetry=telemetry, drain_deadline=60_000, **more),)))


def member(name: str, **keys: Any) -> Replica:
    return Replica(name, Address("10.0.0.1", 8000 + ord(name)), **keys)


THREE = fleet(member("a"), member("b"), member("c"))


def put_together(
    base: Snapshot = THREE,
    *held: Override,
    weights: dict[str, Weight] | None = None,
    ejected: dict[str, tuple[str, ...]] | None = None,
    drains: Since | None = None,
    now: float = NOW,
) -> Composed:
    output = LoopOutput({"p": weights} if weights else {}, {"p": ejected} if ejected else {})
    return compose(base, output, held, drains or {}, now)


def rows(composed: Composed) -> dict[str, EffectiveReplica]:
    return {item.replica.name: item for item in composed.replicas(composed.whole.topology.pools[0])}


def test_without_anything_that_acts_the_proxies_get_the_fleet() -> None:
    composed = put_together()
    assert composed.snapshot == composed.whole == THREE
    assert [(item.weight, item.status, item.reasons) for item in rows(composed).values()] == [
        (from_capacity(1.0), "in", ())
    ] * 3


def test_an_operators_weight_is_over_what_the_loop_has_decided_and_ends_with_its_time() -> None:
    held = Override("weight", "p", "a", 9.0, "too hot", until=NOW + 10)
    composed = put_together(THREE, held, weights={"a": SLOW, "b": SLOW})
    found = rows(composed)
    assert (found["a"].weight, found["b"].weight, found["c"].weight) == (from_capacity(9.0), SLOW, from_capacity(1.0))
    assert found["a"].reasons == ("weight 9 held by an operator: too hot",)
    late = put_together(THREE, held, weights={"a": SLOW}, now=NOW + 10)
    assert (rows(late)["a"].weight, late.overrides) == (SLOW, ())


def test_a_drain_by_the_files_or_by_an_operator_sends_nothing_new_and_keeps_its_time() -> None:
    base = fleet(member("a"), member("b", drain=True), member("c"))
    held = Override("drain", "p", "c", reason="driver update")
    composed = put_together(base, held, drains={("p", "b"): NOW - 30})
    found = rows(composed)
    assert composed.drains == {("p", "b"): NOW - 30, ("p", "c"): NOW}
    assert {name: (item.status, item.share) for name, item in found.items()} == {
        "a": ("in", 1.0), "b": ("drained", 0.0), "c": ("drained", 0.0),
    }  # fmt: skip
    assert (found["b"].reasons, found["b"].drained_since) == (("drained by the files",), NOW - 30)
    assert found["c"].reasons == ("drained by an operator: driver update",)
    assert composed.next_deadline(NOW) == NOW + 30
    assert composed.snapshot is composed.whole


def test_past_its_deadline_a_replica_is_removed_from_the_proxies_and_still_shown() -> None:
    held = Override("drain", "p", "c")
    composed = put_together(THREE, held, drains={("p", "c"): NOW - 60})
    assert [item.name for item in composed.snapshot.topology.pools[0].replicas] == ["a", "b"]
    assert composed.removed == {"p": frozenset({"c"})}
    shown = rows(composed)["c"]
    assert (shown.status, shown.share, shown.drained_since) == ("removed", 0.0, NOW - 60)
    assert shown.reasons == ("its drain deadline has passed", "drained by an operator")


def test_an_ejected_replica_gets_nothing_and_says_why_and_a_pool_that_is_not_watched_ejects_nobody() -> None:
    composed = put_together(ejected={"a": ("XID 79",), "gone": ("XID 48",)})
    assert composed.snapshot.out == {"p": frozenset({"a"})}
    shown = rows(composed)["a"]
    assert (shown.status, shown.reasons, shown.share, shown.drained_since) == ("ejected", ("XID 79",), 0.0, None)
    pool = replace(THREE.topology.pools[0], telemetry=None)
    unwatched = replace(THREE, topology=replace(THREE.topology, pools=(pool,)))
    assert put_together(unwatched, ejected={"a": ("XID 79",)}, weights={"b": SLOW}).snapshot == unwatched


def test_where_nobody_is_left_no_replica_has_a_share() -> None:
    composed = put_together(THREE, Override("drain", "p", "b"), Override("drain", "p", "c"), ejected={"a": ("XID",)})
    assert [item.share for item in rows(composed).values()] == [0.0, 0.0, 0.0]


def test_a_freeze_is_no_reason_of_a_replica_and_what_is_not_there_holds_nothing() -> None:
    composed = put_together(THREE, Override("freeze", "p", reason="x"), Override("drain", "q", "a"))
    assert [item.kind for item in composed.overrides] == ["freeze"]
    assert {item.reasons for item in rows(composed).values()} == {()}


# ── What has changed ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_weight_that_an_operator_holds_does_not_change_with_what_the_loop_decides() -> None:
    held = Override("weight", "p", "a", 9.0)
    before = put_together(THREE, held)
    after = put_together(THREE, held, weights={"a": SLOW, "b": SLOW})
    assert weight_changes(before, after) == {"p": {"b": SLOW}}
    assert weight_changes(after, after) == {}
    assert weight_changes(after, put_together(THREE, weights={"a": SLOW, "b": SLOW})) == {"p": {"a": SLOW}}


def test_a_replica_that_gets_nothing_or_is_new_has_no_changed_weight() -> None:
    before = put_together(fleet(member("a"), member("b")))
    assert weight_changes(before, put_together(weights={"a": SLOW, "c": SLOW}, ejected={"a": ("XID",)})) == {}
    assert weight_changes(before, put_together(fleet(member("a", capacity=2.0)))) == {"p": {"a": from_capacity(2.0)}}


# ── For a proxy without health checks and slow start ─────────────────────────────────────────────────────────────────


def test_a_replica_that_fails_its_active_checks_gets_nothing_and_ramps_when_it_is_back() -> None:
    base = fleet(member("a", capacity=4.0), member("b", capacity=4.0), slow_start=SlowStart())
    composed = put_together(base)
    failing = for_proxy(composed, {"p": frozenset({"b"})}, Ramps(), 0.0, 30.0)
    assert drained_of(base.topology.pools[0], failing.snapshot) == {"b"}
    assert (failing.factors, failing.next_change) == ({}, None)
    back = for_proxy(composed, {}, failing.ramps, 100.0, 30.0)
    assert back.snapshot.weights == {"p": {"a": from_capacity(4.0), "b": Weight(0.4, 4.0)}}
    assert (back.factors, back.next_change) == ({"p": {"b": 0.1}}, 130.0)
    up = for_proxy(composed, {}, back.ramps, 160.0, 30.0)
    assert up == ForProxy(composed.snapshot, up.ramps)


def test_a_ramp_is_of_the_weight_that_an_operator_holds_or_the_loop_has_decided() -> None:
    base = fleet(member("a"), member("b"), slow_start=SlowStart())
    held = Override("weight", "p", "b", 6.0)
    before = for_proxy(put_together(fleet(member("a"), slow_start=SlowStart())), {}, Ramps(), 0.0, 30.0)
    joined = for_proxy(put_together(base, held, weights={"a": SLOW}), {}, before.ramps, 1.0, 30.0)
    assert joined.snapshot.weights["p"]["b"].rate == pytest.approx(0.6)
    assert joined.snapshot.weights["p"]["a"] == SLOW


def test_a_drain_by_an_operator_and_a_failed_check_add_up() -> None:
    composed = put_together(THREE, Override("drain", "p", "a"))
    found = for_proxy(composed, {"p": frozenset({"b"})}, Ramps(), 0.0, 30.0)
    assert found.snapshot.drained == {"p": frozenset({"a", "b"})}


def _split_fleet(**shares: int) -> Snapshot:
    pools = tuple(Pool(name, (member("a"),)) for name in sorted(shares))
    route = Route("chat", Forward(tuple(Share(name, shares[name]) for name in sorted(shares))))
    return Snapshot(Topology((), (route,), pools))


def test_an_operators_split_is_over_that_of_the_files_as_long_as_those_stay() -> None:
    held = Override("split", route="chat", shares=(("new", 9), ("old", 1)), replaced=(("new", 0), ("old", 1)))
    files = _split_fleet(new=0, old=1)
    composed = compose(files, LoopOutput(), (held,), {}, NOW)
    assert composed.overrides == (held,)
    assert composed.snapshot.topology.routes == _split_fleet(new=9, old=1).topology.routes
    assert composed.snapshot.topology.pools == files.topology.pools
    changed = compose(_split_fleet(new=1, old=1), LoopOutput(), (held,), {}, NOW)
    assert (changed.overrides, changed.snapshot) == ((), _split_fleet(new=1, old=1))


@pytest.mark.parametrize("value", [10**400, 2_000_000, 2e6])
def test_a_weight_that_is_too_large_is_refused_in_words(value: float) -> None:
    with pytest.raises(ValueError, match="is too much: a weight is at most 1000000"):
        checked_weight(value)

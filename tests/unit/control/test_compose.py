"""The composed snapshot: weights, drains and ejections applied to the fleet."""

from __future__ import annotations

from collections.abc import Mapping
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


def snapshot_of(*replicas: Replica, **more: Any) -> Snapshot:
    telemetry = Telemetry(sources=({},))  # type: ignore[arg-type]  # any source makes it a pool that is watched
    return Snapshot(Topology((), (), (Pool("p", replicas, telemetry=telemetry, drain_deadline=60_000, **more),)))


def member(name: str, **keys: Any) -> Replica:
    return Replica(name, Address("10.0.0.1", 8000 + ord(name)), **keys)


THREE = snapshot_of(member("a"), member("b"), member("c"))


def composed_of(
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


def test_without_overrides_the_snapshot_is_unchanged() -> None:
    composed = composed_of()
    assert composed.snapshot == composed.whole == THREE
    assert [(item.weight, item.status, item.reasons) for item in rows(composed).values()] == [
        (from_capacity(1.0), "in", ())
    ] * 3


def test_an_operators_weight_overrides_the_loop_until_it_expires() -> None:
    held = Override("weight", "p", "a", 9.0, "too hot", until=NOW + 10)
    composed = composed_of(THREE, held, weights={"a": SLOW, "b": SLOW})
    replicas = rows(composed)
    assert (replicas["a"].weight, replicas["b"].weight, replicas["c"].weight) == (
        from_capacity(9.0),
        SLOW,
        from_capacity(1.0),
    )
    assert replicas["a"].reasons == ("weight 9 set by an operator: too hot",)
    late = composed_of(THREE, held, weights={"a": SLOW}, now=NOW + 10)
    assert (rows(late)["a"].weight, late.overrides) == (SLOW, ())


def test_drains_from_files_and_operators_keep_their_start_time() -> None:
    base = snapshot_of(member("a"), member("b", drain=True), member("c"))
    held = Override("drain", "p", "c", reason="driver update")
    composed = composed_of(base, held, drains={("p", "b"): NOW - 30})
    replicas = rows(composed)
    assert composed.drains == {("p", "b"): NOW - 30, ("p", "c"): NOW}
    assert {name: (item.status, item.share) for name, item in replicas.items()} == {
        "a": ("in", 1.0), "b": ("drained", 0.0), "c": ("drained", 0.0),
    }  # fmt: skip
    assert (replicas["b"].reasons, replicas["b"].drained_since) == (("drained by the files",), NOW - 30)
    assert replicas["c"].reasons == ("drained by an operator: driver update",)
    assert composed.next_deadline(NOW) == NOW + 30
    assert composed.snapshot is composed.whole


def test_after_its_drain_deadline_a_replica_is_removed_but_shown() -> None:
    held = Override("drain", "p", "c")
    composed = composed_of(THREE, held, drains={("p", "c"): NOW - 60})
    assert [item.name for item in composed.snapshot.topology.pools[0].replicas] == ["a", "b"]
    assert composed.removed == {"p": frozenset({"c"})}
    removed = rows(composed)["c"]
    assert (removed.status, removed.share, removed.drained_since) == ("removed", 0.0, NOW - 60)
    assert removed.reasons == ("its drain deadline has passed", "drained by an operator")


def test_only_a_watched_pool_ejects_replicas() -> None:
    composed = composed_of(ejected={"a": ("XID 79",), "gone": ("XID 48",)})
    assert composed.snapshot.out == {"p": frozenset({"a"})}
    ejected = rows(composed)["a"]
    assert (ejected.status, ejected.reasons, ejected.share, ejected.drained_since) == (
        "ejected",
        ("XID 79",),
        0.0,
        None,
    )
    pool = replace(THREE.topology.pools[0], telemetry=None)
    unwatched = replace(THREE, topology=replace(THREE.topology, pools=(pool,)))
    assert composed_of(unwatched, ejected={"a": ("XID 79",)}, weights={"b": SLOW}).snapshot == unwatched


def test_no_replica_has_a_share_if_none_is_in() -> None:
    composed = composed_of(THREE, Override("drain", "p", "b"), Override("drain", "p", "c"), ejected={"a": ("XID",)})
    assert [item.share for item in rows(composed).values()] == [0.0, 0.0, 0.0]


def test_a_freeze_is_not_a_replica_reason() -> None:
    composed = composed_of(THREE, Override("freeze", "p", reason="x"), Override("drain", "q", "a"))
    assert [item.kind for item in composed.overrides] == ["freeze"]
    assert {item.reasons for item in rows(composed).values()} == {()}


# ── What has changed ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_held_weight_does_not_change_with_the_loop() -> None:
    held = Override("weight", "p", "a", 9.0)
    before = composed_of(THREE, held)
    after = composed_of(THREE, held, weights={"a": SLOW, "b": SLOW})
    assert weight_changes(before, after) == {"p": {"b": SLOW}}
    assert weight_changes(after, after) == {}
    assert weight_changes(after, composed_of(THREE, weights={"a": SLOW, "b": SLOW})) == {"p": {"a": SLOW}}


def test_ejected_and_new_replicas_have_no_changed_weight() -> None:
    before = composed_of(snapshot_of(member("a"), member("b")))
    assert weight_changes(before, composed_of(weights={"a": SLOW, "c": SLOW}, ejected={"a": ("XID",)})) == {}
    assert weight_changes(before, composed_of(snapshot_of(member("a", capacity=2.0)))) == {
        "p": {"a": from_capacity(2.0)}
    }


# ── For a proxy without health checks and slow start ─────────────────────────────────────────────────────────────────


def test_a_replica_ramps_after_it_passes_its_checks_again() -> None:
    base = snapshot_of(member("a", capacity=4.0), member("b", capacity=4.0), slow_start=SlowStart())
    composed = composed_of(base)
    failing = for_proxy(composed, {"p": frozenset({"b"})}, Ramps(), 0.0, 30.0)
    assert drained_of(base.topology.pools[0], failing.snapshot) == {"b"}
    assert (failing.factors, failing.next_change) == ({}, None)
    back = for_proxy(composed, {}, failing.ramps, 100.0, 30.0)
    assert back.snapshot.weights == {"p": {"a": from_capacity(4.0), "b": Weight(0.4, 4.0)}}
    assert (back.factors, back.next_change) == ({"p": {"b": 0.1}}, 130.0)
    up = for_proxy(composed, {}, back.ramps, 160.0, 30.0)
    assert up == ForProxy(composed.snapshot, up.ramps)


def test_a_ramp_scales_the_weight_of_the_operator_or_the_loop() -> None:
    base = snapshot_of(member("a"), member("b"), slow_start=SlowStart())
    held = Override("weight", "p", "b", 0.4)
    before = for_proxy(composed_of(snapshot_of(member("a"), slow_start=SlowStart())), {}, Ramps(), 0.0, 30.0)
    joined = for_proxy(composed_of(base, held, weights={"a": SLOW}), {}, before.ramps, 1.0, 30.0)
    assert joined.snapshot.weights["p"]["b"].rate == pytest.approx(0.04)
    assert joined.snapshot.weights["p"]["a"] == SLOW


def test_slow_start_leaves_half_of_the_capacity_in_use() -> None:
    """In a rolling restart, the last old replica of an nginx pool would otherwise get most of the requests."""
    base = snapshot_of(member("a"), member("b"), member("c"), member("d", priority=1), slow_start=SlowStart())
    composed = composed_of(base)

    def factors_after(*failing: set[str]) -> Mapping[str, float]:
        ramps = Ramps()
        for names in failing:
            view = for_proxy(composed, {"p": frozenset(names)}, ramps, 0.0, 30.0)
            ramps = view.ramps
        return view.factors.get("p", {})

    assert factors_after({"b"}, set()) == {"b": 0.1}
    assert factors_after({"b"}, {"c"}) == pytest.approx({"b": 0.5})
    assert factors_after({"b", "c"}, set()) == pytest.approx({"b": 0.25, "c": 0.25})
    assert factors_after({"a", "b"}, {"a", "c"}) == {}
    assert factors_after({"d"}, set()) == pytest.approx({"d": 0.5})


def test_a_drain_by_an_operator_and_a_failed_check_add_up() -> None:
    composed = composed_of(THREE, Override("drain", "p", "a"))
    proxy_view = for_proxy(composed, {"p": frozenset({"b"})}, Ramps(), 0.0, 30.0)
    assert proxy_view.snapshot.drained == {"p": frozenset({"a", "b"})}


def _split_fleet(**shares: int) -> Snapshot:
    pools = tuple(Pool(name, (member("a"),)) for name in sorted(shares))
    route = Route("chat", Forward(tuple(Share(name, shares[name]) for name in sorted(shares))))
    return Snapshot(Topology((), (route,), pools))


def test_an_operators_split_holds_until_the_files_change() -> None:
    held = Override("split", route="chat", shares=(("new", 9), ("old", 1)), replaced=(("new", 0), ("old", 1)))
    files = _split_fleet(new=0, old=1)
    composed = compose(files, LoopOutput(), (held,), {}, NOW)
    assert composed.overrides == (held,)
    assert composed.snapshot.topology.routes == _split_fleet(new=9, old=1).topology.routes
    assert composed.snapshot.topology.pools == files.topology.pools
    changed = compose(_split_fleet(new=1, old=1), LoopOutput(), (held,), {}, NOW)
    assert (changed.overrides, changed.snapshot) == ((), _split_fleet(new=1, old=1))


@pytest.mark.parametrize("value", [10**400, 2_000_000, 2e6])
def test_a_weight_above_the_maximum_is_rejected(value: float) -> None:
    with pytest.raises(ValueError, match="is too large: the maximum weight is 1000000"):
        checked_weight(value)


@pytest.mark.parametrize(
    ("fail_open", "failing", "drained"),
    [(True, "ab", "c"), (True, "abc", "c"), (True, "a", "ac"), (False, "ab", "abc"), (False, "abc", "abc")],
)
def test_pool_that_fails_open_keeps_its_replicas(fail_open: bool, failing: str, drained: str) -> None:
    """The drained replica c stays out."""
    base = snapshot_of(member("a"), member("b"), member("c", drain=True), fail_open=fail_open)
    snapshot = for_proxy(composed_of(base), {"p": frozenset(failing)}, Ramps(), 0.0, 1.0).snapshot
    assert drained_of(snapshot.topology.pools[0], snapshot) == frozenset(drained)

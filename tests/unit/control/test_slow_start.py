"""Slow start in steps, for a proxy without slow start."""

from __future__ import annotations

from lbctl.control.slow_start import Ramps, lowest, step, stepped
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica, SlowStart
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology

_RULES = SlowStart(window=60_000, min_weight=10.0, aggression=1.0)


def snapshot_of(*names: str, out: tuple[str, ...] = (), rules: SlowStart | None = _RULES) -> Snapshot:
    members = tuple(Replica(name, Address("10.0.0.1", 8000 + ord(name)), capacity=4.0) for name in names)
    pools = (Pool("p", members, slow_start=rules),) if names else ()
    return Snapshot(Topology(listeners=(), routes=(), pools=pools, proxies=()), drained={"p": frozenset(out)})


def test_by_default_a_replica_ramps_in_three_steps() -> None:
    assert [stepped(_RULES, age, 30.0) for age in (0, 29.9, 30, 59.9, 60, 1000)] == [0.1, 0.1, 0.5, 0.5, 1.0, 1.0]


def test_a_ramp_has_at_most_nine_levels() -> None:
    assert (step(_RULES, 30.0), step(_RULES, 1.0)) == (30.0, 7.5)
    levels = [stepped(_RULES, age / 10, 1.0) for age in range(700)]
    assert levels == sorted(levels)
    assert len(set(levels)) == 9


def test_steps_stay_below_the_smooth_ramp_and_end_with_it() -> None:
    assert all(stepped(_RULES, age, 7.0) <= max(0.1, age / 60) for age in range(60))
    assert stepped(SlowStart(window=10_000), 10.0, 30.0) == 1.0


def test_aggression_follows_envoys_formula() -> None:
    assert stepped(SlowStart(60_000, 10.0, 2.0), 15.0, 15.0) == 0.25**0.5


def tracked(ramps: Ramps, snapshot: Snapshot, now: float, failing: str = "") -> Ramps:
    return ramps.track(snapshot.topology.pools, snapshot, {"p": frozenset(failing)}, now)


def test_no_replica_ramps_at_the_start() -> None:
    snapshot = snapshot_of("a", "b")
    ramps = tracked(Ramps(), snapshot, 0.0)
    assert ramps.factors(snapshot.topology, 0.0, 30.0) == {}
    assert ramps.next_change(snapshot.topology, 0.0, 30.0) is None


def test_joining_and_recovering_replicas_ramp() -> None:
    ramps = tracked(Ramps(), snapshot_of("a", "b"), 0.0, failing="b")
    snapshot = snapshot_of("a", "b", "c")
    ramps = tracked(ramps, snapshot, 100.0)
    assert ramps.factors(snapshot.topology, 100.0, 30.0) == {"p": {"b": 0.1, "c": 0.1}}
    assert ramps.next_change(snapshot.topology, 100.0, 30.0) == 130.0
    assert ramps.factors(snapshot.topology, 130.0, 30.0) == {"p": {"b": 0.5, "c": 0.5}}
    assert ramps.next_change(snapshot.topology, 130.0, 30.0) == 160.0
    assert ramps.factors(snapshot.topology, 160.0, 30.0) == {}
    assert ramps.next_change(snapshot.topology, 160.0, 30.0) is None
    assert tracked(ramps, snapshot, 160.0).since == {}


def test_a_replica_that_leaves_while_it_ramps_begins_again() -> None:
    snapshot = snapshot_of("a", "b")
    ramps = tracked(tracked(Ramps(), snapshot_of("a"), 0.0), snapshot, 10.0)
    ramps = tracked(tracked(ramps, snapshot, 20.0, failing="b"), snapshot, 50.0)
    assert ramps.factors(snapshot.topology, 50.0, 30.0) == {"p": {"b": 0.1}}


def test_a_drain_neither_starts_nor_ends_a_ramp() -> None:
    snapshot, drained = snapshot_of("a", "b"), snapshot_of("a", "b", out=("b",))
    for before in (snapshot, drained):
        ramps = tracked(tracked(Ramps(), before, 0.0), drained, 10.0)
        assert tracked(ramps, snapshot, 20.0).since == {}
    joined = tracked(tracked(Ramps(), snapshot_of("a"), 0.0), snapshot, 10.0)
    back = tracked(tracked(joined, drained, 20.0), snapshot, 50.0)
    assert back.factors(snapshot.topology, 50.0, 30.0) == {"p": {"b": 0.5}}


def test_a_replica_that_joins_drained_ramps_after_its_drain() -> None:
    snapshot = snapshot_of("a", "b")
    ramps = tracked(tracked(Ramps(), snapshot_of("a"), 0.0), snapshot_of("a", "b", out=("b",)), 10.0)
    assert tracked(ramps, snapshot, 90.0).factors(snapshot.topology, 90.0, 30.0) == {"p": {"b": 0.1}}


def test_a_new_pool_or_a_pool_without_slow_start_does_not_ramp() -> None:
    assert tracked(tracked(Ramps(), snapshot_of(), 0.0), snapshot_of("a"), 1.0).since == {}
    off = snapshot_of("a", "b", rules=None)
    ramps = tracked(tracked(Ramps(), snapshot_of("a", rules=None), 0.0), off, 1.0)
    assert ramps.factors(off.topology, 1.0, 30.0) == {}


def test_the_lowest_factor_of_all_proxies_counts() -> None:
    assert lowest([{"p": {"a": 0.5, "b": 0.1}}, {"p": {"a": 0.2}, "q": {"c": 0.3}}]) == {
        "p": {"a": 0.2, "b": 0.1},
        "q": {"c": 0.3},
    }
    assert lowest([]) == {}

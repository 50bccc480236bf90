"""Slow start in steps, for a proxy that has none."""

from __future__ import annotations

from lbctl.control.slow_start import Ramps, lowest, step, stepped
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica, SlowStart
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology

_RULES = SlowStart(window=60_000, min_weight=10.0, aggression=1.0)


def _snapshot(*names: str, out: tuple[str, ...] = (), rules: SlowStart | None = _RULES) -> Snapshot:
    members = tuple(Replica(name, Address("10.0.0.1", 8000 + ord(name)), capacity=4.0) for name in names)
    pools = (Pool("p", members, slow_start=rules),) if names else ()
    return Snapshot(Topology(listeners=(), routes=(), pools=pools, proxies=()), drained={"p": frozenset(out)})


def test_with_the_defaults_a_replica_rises_in_three_steps() -> None:
    assert [stepped(_RULES, age, 30.0) for age in (0, 29.9, 30, 59.9, 60, 1000)] == [0.1, 0.1, 0.5, 0.5, 1.0, 1.0]


def test_a_step_costs_no_more_than_one_reload_an_interval_and_eight_after_the_first() -> None:
    assert (step(_RULES, 30.0), step(_RULES, 1.0)) == (30.0, 7.5)
    levels = [stepped(_RULES, age / 10, 1.0) for age in range(700)]
    assert levels == sorted(levels)
    assert len(set(levels)) == 9


def test_it_is_never_more_than_the_smooth_ramp_and_ends_with_it() -> None:
    assert all(stepped(_RULES, age, 7.0) <= max(0.1, age / 60) for age in range(60))
    assert stepped(SlowStart(window=10_000), 10.0, 30.0) == 1.0


def test_aggression_bends_it_as_envoys_formula_does() -> None:
    assert stepped(SlowStart(60_000, 10.0, 2.0), 15.0, 15.0) == 0.25**0.5


def _after(ramps: Ramps, snapshot: Snapshot, now: float, failing: str = "") -> Ramps:
    return ramps.follow(snapshot.topology.pools, snapshot, {"p": frozenset(failing)}, now)


def test_nobody_ramps_at_the_start() -> None:
    snapshot = _snapshot("a", "b")
    ramps = _after(Ramps(), snapshot, 0.0)
    assert ramps.factors(snapshot.topology, 0.0, 30.0) == {}
    assert ramps.next_change(snapshot.topology, 0.0, 30.0) is None


def test_a_replica_that_joins_ramps_and_so_does_one_that_comes_back() -> None:
    ramps = _after(Ramps(), _snapshot("a", "b"), 0.0, failing="b")
    fleet = _snapshot("a", "b", "c")
    ramps = _after(ramps, fleet, 100.0)
    assert ramps.factors(fleet.topology, 100.0, 30.0) == {"p": {"b": 0.1, "c": 0.1}}
    assert ramps.next_change(fleet.topology, 100.0, 30.0) == 130.0
    assert ramps.factors(fleet.topology, 130.0, 30.0) == {"p": {"b": 0.5, "c": 0.5}}
    assert ramps.next_change(fleet.topology, 130.0, 30.0) == 160.0
    assert ramps.factors(fleet.topology, 160.0, 30.0) == {}
    assert ramps.next_change(fleet.topology, 160.0, 30.0) is None
    assert _after(ramps, fleet, 160.0).since == {}


def test_a_replica_that_leaves_while_it_ramps_begins_again() -> None:
    fleet = _snapshot("a", "b")
    ramps = _after(_after(Ramps(), _snapshot("a"), 0.0), fleet, 10.0)
    ramps = _after(_after(ramps, fleet, 20.0, failing="b"), fleet, 50.0)
    assert ramps.factors(fleet.topology, 50.0, 30.0) == {"p": {"b": 0.1}}


def test_a_drain_begins_no_ramp_and_ends_none() -> None:
    fleet, drained = _snapshot("a", "b"), _snapshot("a", "b", out=("b",))
    for before in (fleet, drained):
        ramps = _after(_after(Ramps(), before, 0.0), drained, 10.0)
        assert _after(ramps, fleet, 20.0).since == {}
    joined = _after(_after(Ramps(), _snapshot("a"), 0.0), fleet, 10.0)
    back = _after(_after(joined, drained, 20.0), fleet, 50.0)
    assert back.factors(fleet.topology, 50.0, 30.0) == {"p": {"b": 0.5}}


def test_a_replica_that_joins_drained_ramps_from_the_end_of_the_drain_on() -> None:
    fleet = _snapshot("a", "b")
    ramps = _after(_after(Ramps(), _snapshot("a"), 0.0), _snapshot("a", "b", out=("b",)), 10.0)
    assert _after(ramps, fleet, 90.0).factors(fleet.topology, 90.0, 30.0) == {"p": {"b": 0.1}}


def test_a_new_pool_and_one_without_slow_start_do_not_ramp() -> None:
    assert _after(_after(Ramps(), _snapshot(), 0.0), _snapshot("a"), 1.0).since == {}
    off = _snapshot("a", "b", rules=None)
    ramps = _after(_after(Ramps(), _snapshot("a", rules=None), 0.0), off, 1.0)
    assert ramps.factors(off.topology, 1.0, 30.0) == {}


def test_of_proxies_at_different_paces_the_lowest_factor_counts() -> None:
    assert lowest([{"p": {"a": 0.5, "b": 0.1}}, {"p": {"a": 0.2}, "q": {"c": 0.3}}]) == {
        "p": {"a": 0.2, "b": 0.1},
        "q": {"c": 0.3},
    }
    assert lowest([]) == {}

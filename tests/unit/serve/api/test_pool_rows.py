"""Rows of pools: four shares of each replica, and the traffic that the proxies report."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.control.compose import Composed, compose, for_proxy
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override
from lbctl.control.slow_start import Ramps
from lbctl.ir.pools import Pool, SlowStart
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, pools_reached, view
from lbctl.ir.topology import Topology
from lbctl.serve.api import pool_rows
from lbctl.serve.api.replica_shares import Carrier
from lbctl.serve.health.thresholds import CheckState
from lbctl.serve.traffic.ledger import Counts, ReplicaCondition, ReplicaKey, TrafficLedger
from tests.support.control import NAME, pool, replica
from tests.support.fleet import compiled

HA, SITE, EDGE = Proxy("ha", "haproxy", ()), Proxy("site", "nginx", ()), Proxy("edge", "envoy", (), instances=3)
TWO = pool(2)


def fleet(item: Pool, *held: Override) -> Composed:
    return compose(Snapshot(Topology((), (), (item,))), LoopOutput(), held, {}, 0.0)


def carrier(proxy: Proxy, composed: Composed, *nodes: str) -> Carrier:
    """A proxy that has what is decided for it."""
    return Carrier(proxy, frozenset({NAME}), composed.snapshot, composed.snapshot, nodes=nodes)


def shares(live: pool_rows.LiveState, composed: Composed) -> Mapping[str, tuple[float | None, ...]]:
    """Replica → declared, decided, acknowledged, observed."""
    (row,) = pool_rows.pools(composed, live)
    return {item.name: (item.declared, item.share, item.acknowledged, item.observed) for item in row.replicas}


def test_without_proxies_a_share_is_decided_and_neither_acknowledged_nor_observed() -> None:
    composed = fleet(TWO, Override("drain", NAME, "r00001"))
    assert shares(pool_rows.LiveState(), composed) == {
        "r00000": (0.5, 1.0, None, None),
        "r00001": (0.5, 0.0, None, None),
    }


def test_a_share_is_acknowledged_as_in_the_oldest_fleet_that_a_connected_proxy_has() -> None:
    before, now = fleet(TWO), fleet(TWO, Override("drain", NAME, "r00001"))
    old = Carrier(HA, frozenset({NAME}), now.snapshot, before.snapshot)
    assert shares(pool_rows.LiveState((old,)), now)["r00001"] == (0.5, 0.0, 0.5, None)
    new = Carrier(SITE, frozenset({NAME}), now.snapshot, None)
    assert shares(pool_rows.LiveState((old, new)), now)["r00001"] == (0.5, 0.0, None, None)
    gone = Carrier(SITE, frozenset({NAME}), now.snapshot, None, connected=False)
    assert shares(pool_rows.LiveState((old, gone)), now)["r00001"] == (0.5, 0.0, 0.5, None)


def test_a_replica_that_lbctl_wrote_as_down_into_one_proxy_has_no_share_there_and_says_so() -> None:
    composed = fleet(TWO)
    own = for_proxy(composed, {NAME: frozenset({"r00001"})}, Ramps(), 0.0, 30.0)
    site = Carrier(SITE, frozenset({NAME}), own.snapshot, view(own.snapshot, SITE), checked=True)
    down = CheckState(out=True, since=0.0, reason="connection refused", at=0.0)
    live = pool_rows.LiveState((site,), checks={(NAME, "r00001"): down})
    (row,) = pool_rows.pools(composed, live)
    good, bad = row.replicas
    assert (good.share, bad.declared, bad.share, bad.state) == (1.0, 0.5, 0.0, "down")
    assert bad.state_reason == "the active check of lbctl for site fails: connection refused"
    assert bad.reasons == (bad.state_reason,)
    assert not bad.out
    edge = Carrier(EDGE, frozenset({NAME}), composed.snapshot, composed.snapshot, nodes=("e1",))
    assert shares(pool_rows.LiveState((site, edge)), composed)["r00001"][1] == 0.5 * 3 / 4


def test_what_one_nginx_runs_is_its_own_view() -> None:
    text = """
        version: 1
        listeners: {gateway: {bind: "127.0.0.1:8080"}}
        routes: {chat: {match: {path_prefix: /}, pool: p}}
        pools: {p: {replicas: [{address: "10.0.0.1:1"}, {address: "10.0.0.2:1"}], health: {active: {tcp: {}}}}}
    """
    composed = compose(Snapshot(compiled(text).topology), LoopOutput(), (), {}, 0.0)
    topology = composed.whole.topology
    (chat,) = topology.pools
    own = for_proxy(composed, {"p": frozenset({chat.replicas[0].name})}, Ramps(), 0.0, 30.0)
    site = Carrier(SITE, pools_reached(topology, SITE), composed.snapshot, view(own.snapshot, SITE))
    (row,) = pool_rows.pools(composed, pool_rows.LiveState((site,)))
    assert [(item.share, item.acknowledged) for item in row.replicas] == [(0.5, 0.0), (0.5, 1.0)]


def test_slow_start_by_lbctl_is_in_the_share_and_the_state() -> None:
    started = pool((replica("a"),), slow_start=SlowStart(60_000))
    both = pool((replica("a"), replica("b")), slow_start=SlowStart(60_000))
    first = for_proxy(fleet(started), {}, Ramps(), 0.0, 30.0)
    composed = fleet(both)
    own = for_proxy(composed, {}, first.ramps, 10.0, 30.0)
    site = Carrier(SITE, frozenset({NAME}), own.snapshot, None, factors=own.factors)
    (row,) = pool_rows.pools(composed, pool_rows.LiveState((site,)))
    assert row.replicas[1].state_reason == "slow start: site gives it 10% of its weight"
    assert (row.replicas[1].state, row.replicas[1].ramp, row.replicas[1].share) == ("ramping", 0.1, 0.090909)


def test_slow_start_by_the_picker_is_in_the_state() -> None:
    composed = fleet(pool((replica("a"), replica("b")), slow_start=SlowStart(60_000)))
    (row,) = pool_rows.pools(composed, pool_rows.LiveState(picker_ramps={NAME: {"b": 0.4}}))
    a, b = row.replicas
    assert (b.state, b.state_reason) == ("ramping", "slow start: the picker gives it 40% of its weight")
    assert (a.state, a.picker_ramp, b.picker_ramp, b.ramp) == ("in", 1.0, 0.4, 1.0)


def test_traffic_is_what_the_reporting_proxies_count_and_the_silent_ones_are_named() -> None:
    ledger, composed = TrafficLedger(), fleet(TWO)
    a, b = ReplicaKey(NAME, "r00000"), ReplicaKey(NAME, "r00001")
    ledger.add("ha", {}, 0.0)
    ledger.add("ha", {a: Counts(30), b: Counts(10, 1)}, 10.0)
    ledger.set_in_flight("ha", {a: 2, b: 0}, 10.0)
    ledger.set_conditions("ha", {b: ReplicaCondition("down", "L4CON")}, 10.0)
    carriers = (carrier(HA, composed), carrier(EDGE, composed, "e1", "e2"))
    (row,) = pool_rows.pools(composed, pool_rows.LiveState(carriers, ledger, now=10.0))
    assert (row.reporting, row.silent, row.requests_per_second) == (("ha",), ("e1", "e2"), 4.0)
    first, second = row.replicas
    assert (first.observed, first.requests_per_second, first.in_flight, first.state) == (0.75, 3.0, 2, "in")
    assert (second.observed, second.in_flight, second.state) == (0.25, 0, "down")
    assert second.state_reason == "the active check of ha (1 of 3 proxies) fails: L4CON"


def test_a_pool_without_reports_has_no_rate_and_one_without_requests_no_observed_share() -> None:
    ledger, composed = TrafficLedger(), fleet(TWO)
    rows = tuple(pool_rows.pools(composed, pool_rows.LiveState((carrier(HA, composed),), ledger)))
    assert (rows[0].requests_per_second, rows[0].replicas[0].requests_per_second) == (None, None)
    ledger.add("ha", {}, 0.0)
    rows = tuple(pool_rows.pools(composed, pool_rows.LiveState((carrier(HA, composed),), ledger)))
    assert (rows[0].requests_per_second, rows[0].replicas[0].requests_per_second) == (0.0, 0.0)
    assert rows[0].replicas[0].observed is None

"""Rows of pools: the four shares of each replica, and the traffic that the proxies report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lbctl.control.analysis.latency import bucket
from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import Composed, compose, for_proxy
from lbctl.control.health import DeepHealth
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override
from lbctl.control.replica_state import ReplicaCondition
from lbctl.control.slow_start import Ramps
from lbctl.ir.pools import ActiveCheck, AgentCheck, HttpCheck, PassiveCheck, Pool, QueuePolicy, SlowStart, TcpCheck
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Route, Share
from lbctl.ir.snapshot import Snapshot, pools_reached, view
from lbctl.ir.topology import Topology
from lbctl.picker.statistics import QueueStatistics
from lbctl.serve.api import pool_rows
from lbctl.serve.api.dashboard import rows as dashboard_rows
from lbctl.serve.api.fleet_proxies import FleetProxy
from lbctl.serve.api.replica_times import DrainTimes
from lbctl.serve.picker.recent_queues import QueueState
from lbctl.serve.traffic.ledger import Counts, ReplicaKey, TrafficLedger
from tests.support import fleets
from tests.support.control import NAME, pool, replica
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text

HA, SITE, EDGE = Proxy("ha", "haproxy", ()), Proxy("site", "nginx", ()), Proxy("edge", "envoy", (), instances=3)
TWO = pool(2)
CONNECTED = CheckState(out=False, since=0.0, at=0.0, passed=True)


def composed_of(item: Pool, *overrides: Override) -> Composed:
    return compose(Snapshot(Topology((), (), (item,))), LoopOutput(), overrides, {}, 0.0)


def fleet_proxy(proxy: Proxy, composed: Composed, *nodes: str) -> FleetProxy:
    """Return a proxy that has acknowledged its current snapshot."""
    return FleetProxy(proxy, frozenset({NAME}), composed.snapshot, composed.snapshot, nodes=nodes)


def shares(live: pool_rows.LiveState, composed: Composed) -> Mapping[str, tuple[float | None, ...]]:
    """Return the declared, decided, acknowledged and observed share of each replica."""
    (row,) = pool_rows.pools(composed, live)
    return {item.name: (item.declared, item.share, item.acknowledged, item.observed) for item in row.replicas}


def test_without_proxies_a_share_is_only_declared_and_decided() -> None:
    composed = composed_of(TWO, Override("drain", NAME, "r00001"))
    assert shares(pool_rows.LiveState(), composed) == {
        "r00000": (0.5, 1.0, None, None),
        "r00001": (0.5, 0.0, None, None),
    }


def test_pool_is_unchecked_until_a_replica_has_passed() -> None:
    composed, keys = composed_of(TWO), [(NAME, "r00000"), (NAME, "r00001")]
    new, failed = CheckState(out=False, since=0.0), CheckState(out=True, since=0.0, reason="refused", at=0.0)

    def unchecked(*states: CheckState, at: float = 1.0, **more: Any) -> bool:
        live = pool_rows.LiveState(connections=dict(zip(keys, states, strict=True)), at=at, **more)
        return pool_rows.unchecked(composed, live, [NAME]) == {NAME}

    assert [unchecked(new, new), unchecked(new, failed), unchecked(new, CONNECTED)] == [True, True, False]
    assert [unchecked(failed, failed), unchecked(CONNECTED, CONNECTED)] == [False, False]
    assert unchecked(CONNECTED, CONNECTED, checks=dict.fromkeys(keys, new)), "the active check is to come"
    assert not unchecked(new, new, at=100.0), "it cannot be checked"
    ledger = TrafficLedger()
    ledger.add("ha", {ReplicaKey(*keys[0]): Counts(1)}, 0.0)
    assert not unchecked(new, new, ledger=ledger)
    assert pool_rows.unchecked(composed, pool_rows.LiveState(), [NAME]) == frozenset(), "nothing checks it"


def _unanswered(item: Pool, age: float, in_flight: int | None, route: Mapping[str, Any], **more: Any) -> str:
    """Return the state of a replica of which 3 requests ended without an answer, the first of them `age` seconds ago.

    `in_flight` is what the proxy reports now.
    """
    target = Route("chat", Forward((Share(item.name, 1),)), **route)
    composed = compose(Snapshot(Topology((), (target,), (item,))), LoopOutput(), (), {}, 0.0)
    ledger, key = TrafficLedger(), ReplicaKey(NAME, "r00000")
    ledger.add("ha", {key: Counts(2)}, 0.0, ())
    ledger.add("ha", {key: Counts(1, 1)}, age, ())
    if in_flight is not None:
        ledger.set_in_flight("ha", {key: in_flight}, age)
    live = pool_rows.LiveState(
        (FleetProxy(HA, frozenset({NAME}), composed.snapshot, composed.snapshot),), ledger,
        connections={(NAME, "r00000"): CONNECTED}, now=age, **more,
    )  # fmt: skip
    (row,) = pool_rows.pools(composed, live)
    return row.replicas[0].state


def test_replica_without_answers_is_unknown_after_its_timeouts() -> None:
    minute = {"idle_timeout": 60_000}
    assert [_unanswered(TWO, age, 0, minute) for age in (29.0, 31.0)] == ["in", "unknown"]
    assert [_unanswered(TWO, age, 1, minute) for age in (31.0, 59.0, 61.0)] == ["in", "in", "unknown"]
    assert [_unanswered(TWO, age, None, minute) for age in (59.0, 61.0)] == ["in", "unknown"]
    assert _unanswered(TWO, 61.0, 1, {**minute, "attempt_timeout": 20_000}) == "unknown"
    assert _unanswered(TWO, 9999.0, 1, {"idle_timeout": None}) == "in", "an answer may begin at any time"


def test_checks_and_telemetry_show_more_than_requests() -> None:
    checked = replace(TWO, active=ActiveCheck(HttpCheck("/health")))
    assert _unanswered(checked, 999.0, 0, {}) == "in"
    assert _unanswered(replace(TWO, active=ActiveCheck(TcpCheck())), 999.0, 0, {}) == "unknown"
    assert _unanswered(TWO, 999.0, 0, {}, health={(NAME, "r00000"): DeepHealth()}) == "in"


def test_ejection_states_when_it_ends() -> None:
    item = replace(TWO, passive=PassiveCheck(ejection_time=30_000, error_window=10_000))
    ledger, key, composed = TrafficLedger(), ReplicaKey(NAME, "r00000"), composed_of(item)

    def reason(proxy: Proxy) -> str:
        ledger.set_conditions(proxy.name, {key: ReplicaCondition("ejected", "why")}, 0.0)
        (row,) = pool_rows.pools(composed, pool_rows.LiveState((fleet_proxy(proxy, composed),), ledger))
        assert row.replicas[0].state == "ejected"
        ledger.lost(proxy.name)
        return row.replicas[0].state_reason

    edge = replace(EDGE, instances=1)
    again = "it receives requests again 30 to 40 s after its ejection"
    assert reason(edge) == f"ejected by the passive check of edge: why; {again}"
    assert reason(HA).endswith("why; it receives requests again after 2 passed checks, with one check every 15 s")
    item = replace(item, active=ActiveCheck(TcpCheck(), interval=2_000, healthy_threshold=1))
    composed = composed_of(item)
    assert reason(HA).endswith("why; it receives requests again after 1 passed check, with one check every 2 s")


def test_agent_explains_the_check_of_an_envoy() -> None:
    item = replace(TWO, active=ActiveCheck(HttpCheck(), port=9500), agent=AgentCheck(9500))
    failed = CheckState(out=True, since=0.0, reason="status 503: XID 79", at=0.0)
    composed, edge = composed_of(item), replace(EDGE, instances=1)
    ledger, names = TrafficLedger(), [each.name for each in item.replicas]
    conditions = zip(names, (ReplicaCondition("down"), ReplicaCondition("up")), strict=True)
    ledger.set_conditions(edge.name, {ReplicaKey(NAME, name): each for name, each in conditions}, 0.0)
    live = pool_rows.LiveState(
        (fleet_proxy(edge, composed),), ledger, observed_checks={(NAME, name): failed for name in names}
    )
    (row,) = pool_rows.pools(composed, live)
    assert [(each.state, each.state_reason) for each in row.replicas] == [
        ("down", "the active check of edge fails; lbctl's check of its agent: status 503: XID 79"),
        ("in", ""),
    ]


def test_acknowledged_share_is_from_the_oldest_connected_proxy() -> None:
    undrained, drained = composed_of(TWO), composed_of(TWO, Override("drain", NAME, "r00001"))
    outdated = FleetProxy(HA, frozenset({NAME}), drained.snapshot, undrained.snapshot)
    assert shares(pool_rows.LiveState((outdated,)), drained)["r00001"] == (0.5, 0.0, 0.5, None)
    waiting = FleetProxy(SITE, frozenset({NAME}), drained.snapshot, None)
    assert shares(pool_rows.LiveState((outdated, waiting)), drained)["r00001"] == (0.5, 0.0, None, None)
    disconnected = FleetProxy(SITE, frozenset({NAME}), drained.snapshot, None, connected=False)
    assert shares(pool_rows.LiveState((outdated, disconnected)), drained)["r00001"] == (0.5, 0.0, 0.5, None)


def test_drained_replica_is_idle_after_a_newer_report() -> None:
    undrained, drained = composed_of(TWO), composed_of(TWO, Override("drain", NAME, "r00001"))
    ledger, drains, key = TrafficLedger(), DrainTimes(), ReplicaKey(NAME, "r00001")

    def state(proxy: FleetProxy, now: float) -> tuple[str, bool | None]:
        live = pool_rows.LiveState((proxy,), ledger, drains=drains, now=now)
        (row,) = pool_rows.pools(drained, live)
        return row.replicas[1].state, row.replicas[1].idle

    ledger.set_in_flight("ha", {key: 0}, 1.0)
    assert state(FleetProxy(HA, frozenset({NAME}), drained.snapshot, undrained.snapshot), 2.0) == ("draining", False)
    assert state(fleet_proxy(HA, drained), 3.0) == ("draining", False), "the report is older than the drain"
    ledger.set_in_flight("ha", {key: 2}, 4.0)
    assert state(fleet_proxy(HA, drained), 4.0) == ("draining", False)
    ledger.set_in_flight("ha", {key: 0}, 5.0)
    assert state(fleet_proxy(HA, drained), 5.0) == ("drained", True)
    assert state(fleet_proxy(SITE, drained), 6.0)[1] is True
    assert drains.applied_at(key, True, 9.0) == 3.0
    list(pool_rows.pools(undrained, pool_rows.LiveState((fleet_proxy(HA, undrained),), ledger, drains=drains)))
    assert drains.applied_at(key, True, 9.0) == 9.0, "it was undrained"


def test_replica_is_not_draining_by_a_report_from_its_drain() -> None:
    undrained, drained = composed_of(TWO), composed_of(TWO, Override("drain", NAME, "r00001"))
    ledger, drains, key = TrafficLedger(), DrainTimes(), ReplicaKey(NAME, "r00001")

    def state(composed: Composed, now: float) -> str:
        live = pool_rows.LiveState(
            (fleet_proxy(HA, composed),), ledger, connections=dict.fromkeys([key], CONNECTED), drains=drains, now=now
        )
        (row,) = pool_rows.pools(composed, live)
        return row.replicas[1].state

    ledger.set_conditions("ha", {key: ReplicaCondition("draining", "DRAIN")}, 1.0)
    assert state(drained, 2.0) == "draining"
    assert state(undrained, 3.0) == "in"
    ledger.set_conditions("ha", {key: ReplicaCondition("draining", "DRAIN")}, 4.0)
    assert state(undrained, 5.0) == "draining", "HAProxy still has it"


def test_replica_down_in_one_proxy_has_no_share_there() -> None:
    checked = pool(2, active=ActiveCheck(TcpCheck()))
    composed = composed_of(checked)
    nginx_view = for_proxy(composed, {NAME: frozenset({"r00001"})}, Ramps(), 0.0, 30.0)
    site = FleetProxy(SITE, frozenset({NAME}), nginx_view.snapshot, view(nginx_view.snapshot, SITE), checked=True)
    failed_check = CheckState(out=True, since=0.0, reason="connection refused", at=0.0)
    live = pool_rows.LiveState((site,), checks={(NAME, "r00001"): failed_check})
    (row,) = pool_rows.pools(composed, live)
    up, down_replica = row.replicas
    assert (up.share, down_replica.declared, down_replica.share, down_replica.state) == (1.0, 0.5, 0.0, "down")
    assert down_replica.state_reason == "lbctl's active check for site fails: connection refused"
    assert down_replica.reasons == (down_replica.state_reason,)
    assert not down_replica.out
    unfinished = {(NAME, "r00001"): CheckState(out=True, since=0.0)}
    (row,) = pool_rows.pools(composed, replace(live, checks=unfinished))
    assert (row.replicas[1].share, row.replicas[1].state) == (0.0, "starting")
    edge = FleetProxy(EDGE, frozenset({NAME}), composed.snapshot, composed.snapshot, nodes=("e1",))
    ledger = TrafficLedger()
    ledger.set_conditions("e1", {ReplicaKey(NAME, "r00001"): ReplicaCondition("up")}, 0.0)
    assert shares(replace(live, proxies=(site, edge)), composed)["r00001"][1] == 0.0
    assert shares(replace(live, proxies=(site, edge), ledger=ledger), composed)["r00001"][1] == 0.5 * 3 / 4
    unchecked = composed_of(TWO)
    assert (
        shares(replace(live, proxies=(fleet_proxy(EDGE, unchecked, "e1"),), ledger=ledger), unchecked)["r00001"][1] == 0
    )


def test_acknowledged_share_is_from_the_view_of_nginx() -> None:
    text = fleet_text(
        fleets.pool(fleets.replica("a"), fleets.replica("b", "127.0.0.1:10"), health={"active": {"tcp": {}}})
    )
    composed = compose(Snapshot(compiled(text).topology), LoopOutput(), (), {}, 0.0)
    topology = composed.whole.topology
    own = for_proxy(composed, {"pool": frozenset({"a"})}, Ramps(), 0.0, 30.0)
    site = FleetProxy(SITE, pools_reached(topology, SITE), composed.snapshot, view(own.snapshot, SITE))
    (row,) = pool_rows.pools(composed, pool_rows.LiveState((site,)))
    assert [(item.share, item.acknowledged) for item in row.replicas] == [(0.5, 0.0), (0.5, 1.0)]


def test_slow_start_by_lbctl_changes_share_and_state() -> None:
    before = pool((replica("a"),), slow_start=SlowStart(60_000))
    after = pool((replica("a"), replica("b")), slow_start=SlowStart(60_000))
    first_view = for_proxy(composed_of(before), {}, Ramps(), 0.0, 30.0)
    composed = composed_of(after)
    ramping_view = for_proxy(composed, {}, first_view.ramps, 10.0, 30.0)
    site = FleetProxy(SITE, frozenset({NAME}), ramping_view.snapshot, None, factors=ramping_view.factors)
    (row,) = pool_rows.pools(composed, pool_rows.LiveState((site,), connections={(NAME, "b"): CONNECTED}))
    assert row.replicas[1].state_reason == "slow start: site gives it 10% of its weight"
    assert (row.replicas[1].state, row.replicas[1].ramp, row.replicas[1].share) == ("ramping", 0.1, 0.090909)


def test_slow_start_by_the_picker_changes_the_state() -> None:
    composed = composed_of(pool((replica("a"), replica("b")), slow_start=SlowStart(60_000)))
    connections = {(NAME, name): CONNECTED for name in ("a", "b")}
    (row,) = pool_rows.pools(composed, pool_rows.LiveState(picker_ramps={NAME: {"b": 0.4}}, connections=connections))
    a, b = row.replicas
    assert (b.state, b.state_reason) == ("ramping", "slow start: the picker gives it 40% of its weight")
    assert (a.state, a.picker_ramp, b.picker_ramp, b.ramp) == ("in", 1.0, 0.4, 1.0)


def test_traffic_is_the_sum_of_the_reporting_proxies() -> None:
    ledger, composed = TrafficLedger(), composed_of(TWO)
    a, b = ReplicaKey(NAME, "r00000"), ReplicaKey(NAME, "r00001")
    ledger.add("ha", {}, 0.0)
    ledger.add("ha", {a: Counts(30), b: Counts(10, 1)}, 10.0)
    ledger.set_in_flight("ha", {a: 2, b: 0}, 10.0)
    ledger.set_conditions("ha", {b: ReplicaCondition("down", "L4CON")}, 10.0)
    proxies = (fleet_proxy(HA, composed), fleet_proxy(EDGE, composed, "e1", "e2"))
    (row,) = pool_rows.pools(composed, pool_rows.LiveState(proxies, ledger, now=10.0))
    assert (row.reporting, row.silent, row.requests_per_second) == (("ha",), ("e1", "e2"), 4.0)
    first, second = row.replicas
    assert (first.observed, first.requests_per_second, first.in_flight, first.state) == (0.75, 3.0, 2, "in")
    assert (second.observed, second.in_flight, second.state) == (0.25, 0, "down")
    assert second.state_reason == "the active check of ha (1 of 3 proxies) fails: L4CON"


def test_pool_without_reports_has_no_rate() -> None:
    ledger, composed = TrafficLedger(), composed_of(TWO)
    rows = tuple(pool_rows.pools(composed, pool_rows.LiveState((fleet_proxy(HA, composed),), ledger)))
    assert (rows[0].requests_per_second, rows[0].replicas[0].requests_per_second) == (None, None)
    ledger.add("ha", {}, 0.0)
    rows = tuple(pool_rows.pools(composed, pool_rows.LiveState((fleet_proxy(HA, composed),), ledger)))
    assert (rows[0].requests_per_second, rows[0].replicas[0].requests_per_second) == (0.0, 0.0)
    assert rows[0].replicas[0].observed is None


def test_errors_are_a_part_of_the_last_minute() -> None:
    ledger, (a, b) = TrafficLedger(), (ReplicaKey(NAME, "r00000"), ReplicaKey(NAME, "r00001"))
    ledger.add("ha", {a: Counts(4, 1), b: Counts(4, 4)}, 0.0)
    ledger.add_first_bytes("ha", {a: {bucket(200.0): 3}}, 0.0)
    (row,) = pool_rows.pools(composed_of(TWO), pool_rows.LiveState((), ledger, now=1.0))
    assert (row.errors, [item.errors for item in row.replicas]) == (0.625, [0.25, 1.0])
    assert 0.19 < (row.first_byte_p50 or 0) < 0.21
    assert row.first_byte_p50 == row.replicas[0].first_byte_p50
    assert row.replicas[1].first_byte_p50 is None
    (row,) = pool_rows.pools(composed_of(TWO), pool_rows.LiveState((), ledger, now=66.0))
    assert (row.errors, row.first_byte_p50) == (None, None)


def test_pool_that_answers_only_errors_is_failing() -> None:
    ledger, a = TrafficLedger(), ReplicaKey(NAME, "r00000")

    def failing(now: float) -> bool:
        (row,) = pool_rows.pools(composed_of(TWO), pool_rows.LiveState((), ledger, now=now))
        return row.failing

    ledger.add("ha", {a: Counts(2, 2)}, 0.0)
    assert not failing(1.0), "two requests prove nothing"
    ledger.add("ha", {a: Counts(10, 0)}, 5.0)
    ledger.add("ha", {a: Counts(10, 10)}, 20.0)
    assert failing(21.0), "those before have been answered, and all of the last seconds fail"
    ledger.add("ha", {a: Counts(10, 9)}, 22.0)
    assert not failing(22.0)


def test_errors_of_proxies_themselves_count_for_the_pool() -> None:
    ledger, a = TrafficLedger(), ReplicaKey(NAME, "r00000")

    def row(now: float) -> tuple[float | None, bool, float | None]:
        (found,) = pool_rows.pools(composed_of(TWO), pool_rows.LiveState((), ledger, now=now))
        return found.errors, found.failing, found.replicas[0].errors

    ledger.add("ha", {a: Counts(6)}, 0.0)
    ledger.add_own_errors("ha", {NAME: 4}, 0.0)
    assert row(1.0) == (0.4, False, 0.0)
    ledger.add("ha", {}, 50.0)
    ledger.add_own_errors("ha", {NAME: 5}, 50.0)
    assert row(51.0) == (0.6, True, 0.0), "all requests of the last seconds were refused"
    ledger.add("ha", {}, 70.0)
    assert row(71.0) == (1.0, True, None)
    ledger.add("ha", {}, 130.0)
    assert row(131.0) == (None, False, None)


def test_replica_is_unknown_where_lbctl_reaches_none() -> None:
    composed, ledger = composed_of(TWO), TrafficLedger()
    refused = CheckState(out=True, since=0.0, at=0.0, reason="timeout")
    connections = {(NAME, name): refused for name in ("r00000", "r00001")}

    def states() -> list[str]:
        live = pool_rows.LiveState((fleet_proxy(HA, composed),), ledger, connections=connections, now=100.0, at=100.0)
        (row,) = pool_rows.pools(composed, live)
        return [item.state for item in row.replicas]

    assert states() == ["down", "down"], "nothing answers"
    ledger.add("ha", {ReplicaKey(NAME, "r00000"): Counts(5)}, 95.0)
    assert states() == ["in", "unknown"]
    connections[NAME, "r00000"] = CONNECTED
    assert states() == ["in", "down"], "lbctl reaches one of them"


def test_queue_of_a_pool_is_shown() -> None:
    state = QueueState(QueuePolicy(10_000), QueueStatistics({"normal": 3}), {"acme": 2})
    (row,) = pool_rows.pools(composed_of(TWO), pool_rows.LiveState(queues={NAME: state}))
    assert row.queue is not None
    assert (row.queue.waiting, row.queue.tenants) == (3, {"acme": 2})
    assert dashboard_rows.pool(row).queue == row.queue, "the dashboard shows it"
    (row,) = pool_rows.pools(composed_of(TWO), pool_rows.LiveState())
    assert row.queue is None

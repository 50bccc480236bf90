"""When nginx is reloaded, and which fleet it gets while it rejects the newest one."""

from __future__ import annotations

from dataclasses import replace

from lbctl.apply.nginx.master import Workers, judge
from lbctl.apply.nginx.reload_schedule import (
    ReloadSchedule,
    offset_of,
    reason,
    retry_after,
    same_shape,
    with_live_state,
)
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import from_capacity
from tests.support.weights import row_of_plain


def view_of(*names: str, drained: tuple[str, ...] = (), weights: tuple[float, ...] = (), route: str = "") -> View:
    replicas = tuple(Replica(name, Address(f"10.0.0.{name}", 80)) for name in names)
    proxy = Proxy(route or "edge", "nginx", (1, 22))
    pool_weights = row_of_plain(weights or (1.0 for _ in names))
    return View(proxy, (), {}, {"p": Pool("p", replicas)}, {"p": pool_weights}, {"p": frozenset(drained)})


def test_weights_wait_for_the_interval_health_for_5_seconds() -> None:
    after = ReloadSchedule(30.0).want("files").done(100.0, reloaded=True)
    assert after.due() is None
    assert after.want("weights").due() == 130.0
    assert [after.want(why).due() for why in ("health", "drain", "removal", "files")] == [105.0] * 4
    assert after.want("weights").want("health").due() == after.want("health").want("weights").due() == 105.0


def schedule_after_evidence(schedule: ReloadSchedule, now: float, *weights: float) -> ReloadSchedule:
    """Return the schedule after evidence has changed the weights of two replicas from 1."""
    running, desired = view_of("1", "2"), view_of("1", "2", weights=weights)
    return schedule.observe(running, desired, now).want("evidence")


def test_measured_weights_wait_until_the_change_has_lasted() -> None:
    after = ReloadSchedule(30.0, last=0.0)
    large = schedule_after_evidence(after, 100.0, 1.0, 0.5)
    assert large.due() == 130.0
    assert schedule_after_evidence(large, 110.0, 1.0, 0.3).due() == 130.0
    assert schedule_after_evidence(after, 100.0, 1.0, 0.75).due() == 220.0
    assert schedule_after_evidence(large, 110.0, 1.0, 0.75).due() == 220.0
    assert schedule_after_evidence(large, 110.0, 1.0, 1.0).due() == 30.0, (
        "weights that are as they were are applied, which needs no reload"
    )
    assert large.want("weights").due() == 30.0
    assert large.want("health").due() == 5.0
    assert schedule_after_evidence(large.done(120.0, reloaded=True), 121.0, 1.0, 0.5).due() == 151.0


def test_small_changes_after_a_reload_do_not_cause_another_soon() -> None:
    after = schedule_after_evidence(ReloadSchedule(30.0, last=0.0), 100.0, 1.0, 0.5).done(130.0, reloaded=True)
    running, desired = view_of("1", "2", weights=(1.0, 0.5)), view_of("1", "2", weights=(1.0, 0.55))
    assert after.observe(running, desired, 140.0).want("evidence").due() == 140.0 + 16 * 30


def test_several_nginx_reload_at_different_times() -> None:
    names = [f"edge-{number}" for number in range(32)]
    proxies = [Proxy(name, "nginx", (1, 22)) for name in names]
    offsets = [offset_of(proxy, proxies, "host", 30.0) for proxy in proxies]
    schedules = [ReloadSchedule(30.0, offset, last=0.0) for offset in offsets]
    dues = [schedule_after_evidence(schedule, 100.0, 1.0, 0.5).due() or 0.0 for schedule in schedules]
    assert 130.0 <= min(dues) <= max(dues) < 160.0
    assert max(sum(due <= other < due + 3.0 for other in dues) for due in dues) <= 8, "of 32 within 3 s of 30"
    assert offset_of(proxies[0], proxies[:1], "host", 30.0) == 0.0
    several = Proxy("edge", "nginx", (1, 22), instances=2)
    assert offset_of(several, [several], "one", 30.0) != offset_of(several, [several], "other", 30.0)


def test_only_reloads_for_evidence_are_spread() -> None:
    schedule = schedule_after_evidence(ReloadSchedule(30.0, 20.0, last=0.0), 100.0, 1.0, 0.5)
    assert schedule.due() == 150.0
    assert schedule.want("weights").due() == 30.0
    assert schedule.want("health").due() == 5.0


def test_repeated_large_change_waits_as_long_as_a_small_one() -> None:
    schedule = ReloadSchedule(60.0, last=0.0)
    for turn in range(20):
        schedule = schedule_after_evidence(schedule, 100.0 + 30.0 * turn, 1.0, 0.56 if turn % 2 else 0.64)
    assert schedule.due() == 340.0


def test_replica_at_the_floor_by_health_is_not_delayed() -> None:
    running, desired = view_of("1", "2"), view_of("1", "2")
    floored = replace(desired, weights={"p": (from_capacity(1.0), from_capacity(1.0).times(0.05))})
    assert ReloadSchedule(30.0, last=0.0).observe(running, floored, 100.0).want("evidence").due() == 30.0


def test_small_change_waits_after_a_short_time_at_the_floor() -> None:
    """A replica was at the floor for less than the time until the next reload."""
    running = view_of("1", "2")
    changed = replace(running, weights={"p": (from_capacity(0.9), from_capacity(1.0))})
    floored = replace(running, weights={"p": (from_capacity(0.9), from_capacity(1.0).times(0.05))})
    schedule = ReloadSchedule(30.0, last=90.0).observe(running, floored, 100.0).observe(running, changed, 105.0)
    assert schedule.want("evidence").due() == 100.0 + 16 * 30.0


def test_first_configuration_is_due_immediately() -> None:
    due = ReloadSchedule(30.0).want("weights").due()
    assert due is not None
    assert due < 0


def test_interval_below_5_seconds_applies_to_health() -> None:
    assert ReloadSchedule(1.0, last=10.0).want("health").due() == 11.0


def test_change_without_reload_does_not_delay_the_next_one() -> None:
    assert ReloadSchedule(30.0, last=10.0).want("weights").done(40.0, reloaded=False).want("weights").due() == 40.0


def test_frequent_weights_cause_two_reloads_a_minute() -> None:
    schedule, reloads = ReloadSchedule(30.0), []
    for tick in range(600):
        now = 1000 + tick / 10
        if tick % 6 == 0:
            schedule = schedule.want("weights")
        due = schedule.due()
        if due is not None and due <= now:
            reloads.append(now)
            schedule = schedule.done(now, reloaded=True)
    assert reloads == [1000.0, 1030.0]


def test_refused_configuration_is_retried_with_backoff() -> None:
    assert [retry_after(count) for count in (1, 2, 3, 4, 5, 99)] == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]


def test_reason_is_the_most_urgent_difference() -> None:
    before = view_of("1", "2")
    assert reason(None, before) == "files"
    assert reason(before, view_of("1", "2", weights=(1.0, 2.0))) == "weights"
    assert reason(before, view_of("1", "2", weights=(1.0, 2.0), drained=("1",))) == "health"
    assert reason(before, view_of("1")) == "files"
    assert reason(before, before) == "files", "a certificate may have been renewed"


def test_running_fleet_is_updated_while_a_new_one_is_refused() -> None:
    running = view_of("1", "2", "3", drained=("3",))
    refused = view_of("1", "2", "4", weights=(5.0, 6.0, 7.0), drained=("2", "4"), route="other")
    adapted = with_live_state(running, refused)
    assert same_shape(adapted, running)
    assert (adapted.weights["p"], adapted.drained["p"]) == (row_of_plain((5.0, 6.0, 1.0)), frozenset({"2", "3"}))


def test_replica_with_another_address_is_another_replica() -> None:
    running, moved = view_of("1"), Pool("p", (Replica("1", Address("10.9.9.9", 80)),))
    desired = replace(view_of("1", drained=("1",), weights=(9.0,)), pools={"p": moved})
    assert with_live_state(running, desired) == running


_BEFORE = Workers(frozenset({1, 2}))
_BIND = "2026/01/01 00:00:00 [emerg] 7#7: bind() to 0.0.0.0:80 failed (98: Address already in use)\n"


def test_only_new_workers_are_a_success() -> None:
    verdict = judge(_BEFORE, Workers(frozenset({3, 4}), frozenset({1, 2})), "", 0.1)
    assert verdict is not None
    assert verdict.succeeded


def test_replaced_single_worker_is_not_a_reload() -> None:
    assert judge(_BEFORE, Workers(frozenset({1, 3})), "", 0.1) is None


def test_reload_waits_until_nginx_gives_up_a_taken_port() -> None:
    assert judge(_BEFORE, _BEFORE, _BIND * 4, 2.0) is None
    verdict = judge(_BEFORE, _BEFORE, f"{_BIND * 5}2026/01/01 [emerg] 7#7: still could not bind()\n", 2.5)
    assert verdict is not None
    assert (verdict.succeeded, verdict.reason) == (False, "bind() to 0.0.0.0:80 failed (98: Address already in use)")


def test_new_error_is_a_failure_and_silence_times_out() -> None:
    failed = judge(_BEFORE, _BEFORE, '2026/01/01 [emerg] 7#7: unknown directive "x" in /n.conf:3\n', 0.0)
    silent = judge(_BEFORE, _BEFORE, "", 10.1)
    assert failed is not None
    assert silent is not None
    assert (failed.succeeded, failed.reason) == (False, 'unknown directive "x" in /n.conf:3')
    assert (silent.succeeded, "no new worker" in silent.reason) == (False, True)

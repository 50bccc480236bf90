"""Thresholds of active checks."""

from __future__ import annotations

from lbctl.control.check_thresholds import CheckResult, CheckState, initial_state, next_state
from lbctl.ir.pools import ActiveCheck, HttpCheck

_CHECK = ActiveCheck(HttpCheck(), unhealthy_threshold=3, healthy_threshold=2)
_GOOD, _BAD = CheckResult(), CheckResult("status 503")


def _after(state: CheckState, results: list[CheckResult]) -> list[bool]:
    outs = []
    for number, result in enumerate(results):
        state = next_state(state, _CHECK, result, 100.0 + number)
        outs.append(state.out)
    return outs


def test_replica_is_out_after_consecutive_failures() -> None:
    results = [_GOOD, _BAD, _BAD, _GOOD, _BAD, _BAD, _BAD, _GOOD, _BAD, _GOOD, _GOOD]
    assert _after(initial_state(0.0, trusted=True), results) == [False] * 6 + [True] * 4 + [False]


def test_first_result_decides_alone() -> None:
    assert _after(initial_state(0.0, trusted=True), [_BAD, _GOOD, _GOOD]) == [True, True, False]
    assert _after(initial_state(0.0, trusted=False), [_GOOD]) == [False]
    assert _after(initial_state(0.0, trusted=False), [_BAD, _GOOD]) == [True, True]


def test_state_keeps_reason_and_time_of_the_change() -> None:
    state = initial_state(5.0, trusted=True)
    for number, result in enumerate([_GOOD, _BAD, _BAD, CheckResult("no response within 3 s"), _GOOD]):
        state = next_state(state, _CHECK, result, 100.0 + number)
    assert (state.out, state.since, state.reason, state.at) == (True, 103.0, "no response within 3 s", 104.0)
    state = next_state(state, _CHECK, _GOOD, 105.0)
    assert (state.out, state.since, state.reason) == (False, 105.0, "")
    assert initial_state(7.0, trusted=False).reason == "not checked yet"

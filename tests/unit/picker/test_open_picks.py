"""Unreported ends of requests are corrected by the requests in flight that engines and proxies report."""

from __future__ import annotations

from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.messages import Caller, PickerQuestion
from lbctl.picker.service import PickService
from lbctl.picker.wire import EngineSample, ProxySample
from tests.unit.picker.test_service import POLICY

LATER = 6.0
"""Seconds after which every report must include a request."""


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _picked(*proxies: str) -> tuple[PickService, _Clock, list[str]]:
    """Return a service with one replica, its clock, and the id of a pick for each of these proxies."""
    clock = _Clock()
    service = PickService(clock)
    service.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"),)))
    return service, clock, [service.pick(PickerQuestion(Caller("chat", proxy), {}, b"", 0)).id for proxy in proxies]


def _in_flight(service: PickService) -> int:
    return service.counts().get("chat", {}).get("a", (0, 0))[0]


def _report(service: PickService, clock: _Clock, proxy: str, requests: int) -> None:
    clock.now += LATER
    service.assigned([ProxySample(proxy, "chat", "a", requests)])


def test_picks_missing_in_two_proxy_reports_end_oldest_first() -> None:
    service, clock, picks = _picked("edge", "edge", "edge")
    _report(service, clock, "edge", 1)
    assert (service.open_picks, _in_flight(service)) == (3, 3)
    _report(service, clock, "edge", 1)
    assert (service.open_picks, _in_flight(service)) == (1, 1)
    assert service.statistics.lost == {"chat": 2}
    service.finished(picks[2])
    assert service.open_picks == 0


def test_new_picks_and_picks_of_other_proxies_stay() -> None:
    service, clock, _ = _picked("other", "other")
    for _ in range(3):
        _report(service, clock, "edge", 0)
    assert service.open_picks == 2
    service.pick(PickerQuestion(Caller("chat", "edge"), {}, b"", 0))
    for _ in range(3):
        service.assigned([ProxySample("edge", "chat", "a", 0)])
    assert service.open_picks == 3


def test_complete_report_in_between_keeps_the_picks() -> None:
    service, clock, _ = _picked("edge", "edge")
    for requests in (0, 2, 0):
        _report(service, clock, "edge", requests)
    assert service.open_picks == 2


def test_engine_samples_from_before_the_picks_end_none() -> None:
    service, clock, _ = _picked("edge", "other")
    began = clock.now
    for _ in range(3):
        clock.now += LATER
        service.sampled(EngineSample("chat", "a", 0.0, 0.0, None, False, age=clock.now - began))
    assert service.open_picks == 2


def test_picks_missing_in_engine_samples_end() -> None:
    service, clock, _ = _picked("edge", "other")
    for _ in range(2):
        clock.now += LATER
        service.sampled(EngineSample("chat", "a", 1.0, 0.0, None, False))
    assert (service.open_picks, _in_flight(service)) == (1, 1)
    assert service.statistics.lost == {"chat": 1}

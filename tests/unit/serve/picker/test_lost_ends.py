"""Ends of requests that were never reported: what engines and proxies say of their requests in flight corrects them."""

from __future__ import annotations

from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.picker.question import Caller, PickerQuestion
from lbctl.serve.picker.service import PickService
from lbctl.serve.picker.wire import EngineSample, ProxySample
from tests.unit.serve.picker.test_service import POLICY

LATER = 6.0
"""Seconds after which a request must be in each report."""


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _picked(*proxies: str) -> tuple[PickService, _Clock, list[str]]:
    """A service with one replica, and a pick for each of these proxies."""
    clock = _Clock()
    service = PickService(clock)
    service.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"),)))
    return service, clock, [service.pick(PickerQuestion(Caller("chat", proxy), {}, b"", 0)).id for proxy in proxies]


def _work(service: PickService) -> int:
    return service.counts().get("chat", {}).get("a", (0, 0))[0]


def _report(service: PickService, clock: _Clock, proxy: str, requests: int) -> None:
    clock.now += LATER
    service.assigned([ProxySample(proxy, "chat", "a", requests)])


def test_what_two_reports_of_a_proxy_lack_has_ended_the_oldest_first() -> None:
    service, clock, picks = _picked("edge", "edge", "edge")
    _report(service, clock, "edge", 1)
    assert (service.open_picks, _work(service)) == (3, 3)
    _report(service, clock, "edge", 1)
    assert (service.open_picks, _work(service)) == (1, 1)
    assert service.statistics.lost == {"chat": 2}
    service.finished(picks[2])
    assert service.open_picks == 0


def test_requests_of_other_proxies_and_new_ones_stay() -> None:
    service, clock, _ = _picked("other", "other")
    for _ in range(3):
        _report(service, clock, "edge", 0)
    assert service.open_picks == 2
    service.pick(PickerQuestion(Caller("chat", "edge"), {}, b"", 0))
    for _ in range(3):
        service.assigned([ProxySample("edge", "chat", "a", 0)])
    assert service.open_picks == 3


def test_a_report_with_all_requests_between_two_others_saves_them() -> None:
    service, clock, _ = _picked("edge", "edge")
    for requests in (0, 2, 0):
        _report(service, clock, "edge", requests)
    assert service.open_picks == 2


def test_what_the_engine_said_before_the_requests_came_ends_none_of_them() -> None:
    service, clock, _ = _picked("edge", "other")
    began = clock.now
    for _ in range(3):
        clock.now += LATER
        service.sampled(EngineSample("chat", "a", 0.0, 0.0, None, False, age=clock.now - began))
    assert service.open_picks == 2


def test_requests_that_the_engine_has_not_are_no_open_picks_either() -> None:
    service, clock, _ = _picked("edge", "other")
    for _ in range(2):
        clock.now += LATER
        service.sampled(EngineSample("chat", "a", 1.0, 0.0, None, False))
    assert (service.open_picks, _work(service)) == (1, 1)
    assert service.statistics.lost == {"chat": 1}

"""Reports of HAProxy and nginx about picked requests change the next picks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from lbctl.ir.pools import Locality, PickPolicy, Pool, SessionKey
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Retry, Route, Share
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.http_api import HttpApi, RequestEnds
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.messages import Caller, PickerQuestion, ResponseStart
from lbctl.picker.service import PickService
from lbctl.targets import picker

HAPROXY = (
    "<134>1 2026-11-23T18:40:00+00:00 - haproxy 77 - "
    '[lbctl@0 proxy="ha" backend="pool_p" status="200" {rest} pick="{pick}"] x'
)
NGINX = '<190>Nov 23 18:40:00 lbctl: {{"pick":"{pick}","status":200,"unreached":{rest}}}'
POOL, ROUTE = Pool("p", ()), Route("r", Forward((Share("p", 1),)), regions=("eu", "us"))
AVOIDS_BUSY = PickerQuestion(Caller("p", leaves_busy=True), {}, b"", 0)
QUESTION = PickerQuestion(Caller("p"), {"x-session-id": ["s"]}, b"", 0)


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _service(clock: Callable[[], float] = lambda: 1000.0) -> PickService:
    service = PickService(clock, Random(1))
    replicas = tuple(Candidate(name, f"10.0.0.{number}:80") for number, name in enumerate("ab", 1))
    service.set_table("p", PoolTable("p", PickPolicy((SessionKey(header="x-session-id"),)), replicas))
    return service


@pytest.mark.parametrize(
    ("line", "rest", "suspected"),
    [
        (NGINX, "true", True),
        (NGINX, "false", False),
        (HAPROXY, 'end="--" retries="+1"', True),
        (HAPROXY, f'end="--" server="{"a" * 63}" timers="{"+2147483647 " * 5}" retries="+1"', True),
        (HAPROXY, 'end="SC" retries="3"', True),
        (HAPROXY, 'end="sC" timers="0 0 1 2 3" retries="0"', True),
        (HAPROXY, 'end="CD" timers="0 0 1 2 3" retries="0"', False),
        (HAPROXY, 'end="--" retries="0"', False),
    ],
)
def test_unreached_replica_is_not_picked_for_a_moment(line: str, rest: str, *, suspected: bool) -> None:
    service = _service()
    ends = RequestEnds(service)
    first = service.pick(QUESTION)
    ends.received(line.format(rest=rest, pick=first.id).encode())
    assert (service.open_picks, ends.malformed) == (0, 0)
    later = [service.pick(QUESTION).names[0] for _ in range(10)]
    assert (first.names[0] not in later) is suspected


@pytest.mark.parametrize(("line", "rest"), [(NGINX, 'false,"moved":true'), (HAPROXY, 'end="--" retries="+1"')])
def test_busy_replica_is_avoided_for_a_constant_time(line: str, rest: str) -> None:
    clock = _Clock()
    service = _service(clock)
    ends = RequestEnds(service)
    for _ in range(5):
        first = service.pick(AVOIDS_BUSY)
        ends.received(line.format(pick=first.id, rest=rest).encode())
        assert service.pick(AVOIDS_BUSY).names[0] != first.names[0]
        clock.now += 0.6
        assert service.pick(AVOIDS_BUSY).names[0] == first.names[0]


def test_question_reports_if_busy_replicas_are_avoided() -> None:
    retry = Retry(when=("connect_failure", "replica_busy"), busy_statuses=(503,))
    target = picker.question(POOL, replace(ROUTE, retry=retry, regions=()), Proxy("h", "haproxy", ()))
    service = _service()
    answer = HttpApi(service, bytes).handle(HttpRequest("GET", target, {}, b""))
    service.answered(answer.headers["x-lbctl-pick-id"], ResponseStart(moved=True))
    explained = service.explain(QUESTION)
    assert explained is not None
    reasons = {item.name: item.reason for item in explained.candidates if item.reason}
    assert reasons == {answer.headers["x-lbctl-pick"]: "it was busy, or a proxy could not reach it"}


def test_end_of_a_request_without_a_pick_is_ignored() -> None:
    service = _service()
    ends = RequestEnds(service)
    service.pick(QUESTION)
    ends.received(HAPROXY.format(rest='end="SC" retries="0"', pick="-").encode())
    assert (service.open_picks, ends.malformed) == (1, 0)


@pytest.mark.parametrize(("region", "zone", "replica"), [("us", None, "b"), ("eu", "a%", "a"), (None, None, "a")])
def test_replica_nearest_to_the_proxy_is_picked(region: str | None, zone: str | None, replica: str) -> None:
    places = (Candidate("a", "10.0.0.1:80", region="eu", zone="a%"), Candidate("b", "10.0.0.2:80", region="us"))
    spare = Candidate("c", "10.0.0.3:80", region="us", priority=1)
    proxy = Proxy("h", "haproxy", (), region=region, zone=zone)
    service, target = PickService(), picker.question(POOL, ROUTE, proxy)
    table = PoolTable("p", PickPolicy(()), (*places, spare), locality=Locality("zone", 70.0))
    service.set_table("p", table if region else PoolTable("p", PickPolicy(()), places[:1]))
    answer = HttpApi(service, bytes).handle(HttpRequest("GET", target, {}, b""))
    assert answer.headers["x-lbctl-pick"] == replica

"""Envoy limits retries to a share of the requests in flight, and delays each of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.http1 import Response
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_NO_EJECTION = {"passive": {"consecutive_connect_failures": 1000, "consecutive_5xx": 1000}}


@contextmanager
def _gateway_with_a_refusing_replica(**retry: Any) -> Iterator[tuple[Gateway, Replica]]:
    """About half of the requests need a retry, at the replica that is yielded."""
    with replicas("a", "b") as (a, b):
        pool = pool_of([a, b], balance={"algorithm": "round_robin"}, health=_NO_EJECTION)
        with running("envoy", fleet_of(pool, route={"retry": retry})) as gateway:
            b.refuse()
            yield gateway, a


def _sixty_at_once(**retry: Any) -> tuple[list[Response], float]:
    """Return the responses, and the seconds until the last request arrived at the replica, which answers none
    before."""
    with _gateway_with_a_refusing_replica(**retry) as (gateway, a):
        a.held = True
        began = time.monotonic()
        sent = [gateway.send("GET", "/", timeout=100) for _ in range(60)]
        eventually(lambda: a.in_flight + sum(each.done() for each in sent) == 60)
        a.held = False
        return [each.result(100) for each in sent], a.seen[-1].at - began


def test_retries_stay_within_the_budget() -> None:
    """About thirty of sixty in flight would need one; a tenth of sixty is six."""
    answers, _ = _sixty_at_once(budget="10%", backoff={"base": "2s", "max": "2s"})
    statuses = Counter(answer.status for answer in answers)
    assert statuses[503] >= 10
    assert statuses[200] >= 25
    assert {answer.json["error"]["type"] for answer in answers if not answer.ok} == {"unavailable"}


def test_budget_of_100_percent_allows_all_retries() -> None:
    answers, _ = _sixty_at_once(budget="100%", backoff={"base": "2s", "max": "2s"})
    assert Counter(answer.status for answer in answers) == {200: 60}


def test_few_requests_may_still_be_retried() -> None:
    """A tenth of two requests would be none."""
    with _gateway_with_a_refusing_replica(budget="10%") as (gateway, _):
        gateway.load(10, 2).assert_no_failure()


def test_retry_waits_for_its_backoff() -> None:
    """Each waits a random fraction of the base: at least one of thirty waits for half of it."""
    patient, last = _sixty_at_once(budget="100%", backoff={"base": "6s", "max": "6s"})
    assert Counter(answer.status for answer in patient) == {200: 60}
    assert last > 3

    def are_hasty() -> bool:
        hasty, soon = _sixty_at_once(budget="100%", backoff={"base": "1ms", "max": "1ms"})
        assert Counter(answer.status for answer in hasty) == {200: 60}
        return soon < 3

    eventually(are_hasty)


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
@pytest.mark.parametrize(
    ("retry", "code"), [({"budget": "20%"}, "LB439"), ({"backoff": {"base": "1s", "max": "2s"}}, "LB440")]
)
def test_proxy_without_limits_reports_it_and_retries_at_once(kind: Kind, retry: dict[str, Any], code: str) -> None:
    """HAProxy, however, waits a second if the refusing replica was marked down in the meantime, and one is left."""
    with replicas("a", "b") as (a, b), running(kind, fleet_of([a, b], route={"retry": retry})) as gateway:
        assert f"warning {code}" in gateway.messages
        b.refuse()
        load = gateway.load(20, 4)
    load.assert_no_failure()
    assert load.percentile(50) < 0.9

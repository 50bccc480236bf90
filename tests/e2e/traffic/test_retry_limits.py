"""Envoy: retries are a part of the requests in flight, and wait a little before they go out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.client import Load
from tests.e2e.support.fleet import fleet_of, pool_of, running
from tests.e2e.support.replicas import replicas

_NOBODY_LEAVES = {"passive": {"consecutive_connect_failures": 1000, "consecutive_5xx": 1000}}


def _beside_one_that_refuses(count: int, concurrency: int, **retry: Any) -> Load:
    """About half of the requests need a second try."""
    with replicas("a", "b") as (a, b):
        pool = pool_of([a, b], balance={"algorithm": "round_robin"}, health=_NOBODY_LEAVES)
        with running("envoy", fleet_of(pool, route={"retry": retry})) as gateway:
            b.refuse()
            a.behave(delay=0.3)
            return gateway.load(count, concurrency)


def test_no_more_retries_than_the_budget() -> None:
    """Some thirty of sixty in flight would need one; a tenth of sixty is six."""
    load = _beside_one_that_refuses(60, 60, budget="10%", backoff={"base": "400ms", "max": "400ms"})
    assert load.statuses[503] >= 10
    assert load.statuses[200] >= 25
    assert {answer.json["error"]["type"] for answer in load.failures} == {"unavailable"}


def test_a_budget_of_all_requests_lets_all_try_again() -> None:
    load = _beside_one_that_refuses(60, 60, budget="100%", backoff={"base": "400ms", "max": "400ms"})
    load.assert_no_failure()


def test_few_requests_have_retries_all_the_same() -> None:
    """A tenth of two requests would be none."""
    _beside_one_that_refuses(10, 2, budget="10%").assert_no_failure()


def test_a_retry_waits_as_long_as_it_was_told() -> None:
    """Up to the base, by chance: of ten one at least waits half of it."""
    patient = _beside_one_that_refuses(20, 20, backoff={"base": "6s", "max": "6s"})
    hasty = _beside_one_that_refuses(20, 20, backoff={"base": "1ms", "max": "1ms"})
    patient.assert_no_failure()
    hasty.assert_no_failure()
    assert hasty.percentile(100) < 2.5 < 3 < patient.percentile(100) < 20


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
@pytest.mark.parametrize(
    ("retry", "code"), [({"budget": "20%"}, "LB439"), ({"backoff": {"base": "1s", "max": "2s"}}, "LB440")]
)
def test_a_proxy_that_cannot_says_so_and_retries_at_once(kind: Kind, retry: dict[str, Any], code: str) -> None:
    """But HAProxy waits a second when the replica that refused was marked down meanwhile, and one is left."""
    with replicas("a", "b") as (a, b), running(kind, fleet_of([a, b], route={"retry": retry})) as gateway:
        assert f"warning {code}" in gateway.messages
        b.refuse()
        load = gateway.load(20, 4)
    load.assert_no_failure()
    assert load.percentile(50) < 0.9

"""With `random` each replica gets its share by chance: the tolerance is more than five standard deviations."""

from __future__ import annotations

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.replicas import replicas

_RANDOM = {"algorithm": "random"}


def test_replicas_get_equal_shares(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, fleet_of(pool_of(pool, balance=_RANDOM))) as gateway:
        load = gateway.load(450, concurrency=4)
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, abs=0.12)


def test_shares_follow_the_weights(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, fleet_of(pool_of(pool, [3, 1], balance=_RANDOM))) as gateway:
        load = gateway.load(500, concurrency=4)
        assert ("LB458" in gateway.messages) == (kind == "envoy")  # its own random policy ignores weights
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.11)

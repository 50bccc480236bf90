"""With least_request, unequal replicas that are all busy get requests in proportion to their capacities."""

from __future__ import annotations

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.replicas import replicas


def test_concurrent_requests_are_shared_by_capacity(kind: Kind) -> None:
    """The service time is long enough that the replicas, and not this machine, determine the rate."""
    with replicas("a", "b", "c") as pool, running(kind, fleet_of(pool_of(pool, [5, 2, 1]))) as gateway:
        for replica in pool:
            replica.behave(delay=0.12)
        load = gateway.load(450, concurrency=50)
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 5 / 8, "b": 2 / 8, "c": 1 / 8}, abs=0.05)

"""With `round_robin` each replica gets a share in proportion to its capacity."""

from __future__ import annotations

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import entry, fleet_of, pool_of, running
from tests.support.processes.replicas import replicas

ROUND_ROBIN = {"algorithm": "round_robin"}


def test_replicas_get_the_share_of_their_weight(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool:
        fleet = fleet_of(pool_of(pool, [5, 2, 1], balance=ROUND_ROBIN))
        with running(kind, fleet) as gateway:
            load = gateway.load(400, concurrency=8)
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 5 / 8, "b": 2 / 8, "c": 1 / 8}, abs=0.03)


def test_shares_follow_the_gpus_without_weights(kind: Kind) -> None:
    with replicas("a", "b") as (a, b):
        members = [entry(a, gpu="Big", gpu_count=2), entry(b, gpu="Small")]
        pool = {"replicas": members, "balance": ROUND_ROBIN}
        with running(kind, fleet_of(pool, gpus={"Big": 6, "Small": 4})) as gateway:
            load = gateway.load(160, concurrency=8)
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 12 / 16, "b": 4 / 16}, abs=0.03)

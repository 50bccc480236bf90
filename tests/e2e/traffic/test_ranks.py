"""Data-parallel ranks on consecutive ports of one host: each is a separate replica."""

from __future__ import annotations

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.ports import HOST, free_pair
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import eventually


def test_ranks_share_requests_and_a_dead_one_is_skipped(kind: Kind) -> None:
    port = free_pair()
    pool = {
        "replicas": [{"name": "dp", "address": f"{HOST}:{port}", "ports": 2}],
        "balance": {"algorithm": "round_robin"},
        "slow_start": {"window": "1s"},
    }
    with Replica("first", port=port) as first, Replica("second", port=port + 1):
        with running(kind, fleet_of(pool)) as gateway:
            eventually(lambda: set(gateway.load(20, 1, Request()).by_replica) == {"first", "second"})
            # Each rank ramps from its own first check, so that shares are equal only after the slow start.
            eventually(lambda: gateway.load(40, 1, Request()).by_replica == {"first": 20, "second": 20})
            replicas = {line["replica"] for line in gateway.access_log(60)}
            first.refuse()
            gone = gateway.load(20, 1, Request())
        gone.assert_no_failure()
        assert gone.by_replica == {"second": 20}
        assert replicas == {"dp-0", "dp-1"}

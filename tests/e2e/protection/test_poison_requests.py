"""Failing requests of one client do not eject all replicas of a pool."""

from __future__ import annotations

import contextlib
from typing import Literal

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import replicas

_POST = Request("POST", "/v1/chat", body=b"{}")


@pytest.mark.parametrize("fault", ["status", "reset"])
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_failing_requests_do_not_empty_the_pool(
    kind: Kind, fault: Literal["status", "reset"], names: tuple[str, ...]
) -> None:
    """One client repeatedly sends prompts that crash every engine; the replicas are healthy for all other clients."""
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(replicas(*names))
        gateway = stack.enter_context(running(kind, fleet_of(pool_of(members))))
        for replica in members:
            replica.behave(status=500) if fault == "status" else replica.behave(fault="reset")
        poisoned = gateway.load(24, 2, _POST)
        assert 200 not in poisoned.statuses
        for replica in members:
            replica.behave(status=200, fault="")
        gateway.load(30, 1, _POST).assert_no_failure()


def test_haproxy_ejects_a_replica_that_refuses_connections() -> None:
    """By default, failed connections eject, which no request can cause, and the TCP check readmits the replica."""
    with (
        replicas("a", "b") as (a, b),
        running("haproxy", fleet_of(pool_of([a, b], balance={"algorithm": "round_robin"}))) as gateway,
    ):
        b.refuse()
        gateway.load(40, 1, _POST).assert_no_failure()
        assert sum(line["retries"] for line in gateway.access_log(40)) <= 4


def test_haproxy_warns_of_an_unbounded_ejection() -> None:
    with replicas("a", "b") as pool:
        health = {"passive": {"consecutive_5xx": 3}}
        with running("haproxy", fleet_of(pool_of(pool, health=health))) as gateway:
            assert "warning LB491" in gateway.messages
        with running("haproxy", fleet_of(pool_of(pool))) as gateway:
            assert "LB491" not in gateway.messages

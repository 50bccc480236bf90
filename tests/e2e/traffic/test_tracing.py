"""Envoy tells an OpenTelemetry collector of each request that it samples, within the client's trace."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.collector import Collector, collecting
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_TRACE, _SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-0[01]")
_FLUSHED = 15.0  # seconds; Envoy sends its spans about every five


def _fleet(pool: list[Replica], collector: Collector, **keys: Any) -> Fleet:
    return fleet_of(pool, listener={"tracing": {"otlp": collector.address, "sample": "100%", **keys}})


def _passed_on(replica: Replica, number: int = -1) -> tuple[str, str]:
    """The trace and the parent that the replica was told."""
    found = _PARENT.fullmatch(replica.seen[number].header("traceparent") or "")
    assert found
    return found[1], found[2]


def test_a_span_is_sent_within_the_clients_trace() -> None:
    with (
        replicas("a") as (a,),
        collecting() as collector,
        running("envoy", _fleet([a], collector, service="my-gateway")) as gateway,
    ):
        assert gateway.post("/v1/chat", headers={"traceparent": f"00-{_TRACE}-{_SPAN}-01"}).ok
        eventually(lambda: bool(collector.spans), _FLUSHED)
        (span,) = collector.spans
        assert (span.trace, span.parent, span.kind, span.service) == (_TRACE, _SPAN, "SPAN_KIND_SERVER", "my-gateway")
        assert _passed_on(a) == (_TRACE, span.id)
        assert span.id != _SPAN


def test_without_a_trace_one_is_begun() -> None:
    with (
        replicas("a") as (a,),
        collecting() as collector,
        running("envoy", _fleet([a], collector)) as gateway,
    ):
        gateway.load(3).assert_no_failure()
        eventually(lambda: len(collector.spans) == 3, _FLUSHED)
        assert {span.service for span in collector.spans} == {"inference-gateway"}
        assert len({span.trace for span in collector.spans}) == 3
        assert {_passed_on(a, number) for number in range(3)} == {(span.trace, span.id) for span in collector.spans}


def test_as_many_are_sampled_as_was_said() -> None:
    with (
        replicas("a") as (a,),
        collecting() as collector,
        running("envoy", _fleet([a], collector, sample="20%")) as gateway,
    ):
        gateway.load(500, 4).assert_no_failure()
        wanted = sum((seen.header("traceparent") or "").endswith("-01") for seen in a.seen)
        assert 60 <= wanted <= 140
        eventually(lambda: len(collector.spans) == wanted, _FLUSHED)


def test_a_collector_that_is_down_delays_nobody() -> None:
    tracing = {"otlp": bind(), "sample": "100%"}
    with replicas("a") as pool, running("envoy", fleet_of(pool, listener={"tracing": tracing})) as gateway:
        load = gateway.load(100, 2)
    load.assert_no_failure()
    assert load.percentile(90) < 2


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_a_proxy_that_cannot_trace_says_so_and_passes_the_trace_on(kind: Kind) -> None:
    with replicas("a") as (a,), collecting() as collector, running(kind, _fleet([a], collector)) as gateway:
        assert "warning LB413" in gateway.messages
        gateway.get(headers={"traceparent": f"00-{_TRACE}-{_SPAN}-01"})
    assert _passed_on(a) == (_TRACE, _SPAN)

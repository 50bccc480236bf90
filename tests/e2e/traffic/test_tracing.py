"""Envoy sends a span of each sampled request to an OpenTelemetry collector, within the trace of the client."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.collector import Collector, Span, collecting
from tests.support.processes.fleet import bind, fleet_of, running, side_by_side
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_TRACE, _SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-0[01]")
_FLUSHED = 60.0  # seconds; Envoy sends its spans about every five


def _fleet(pool: list[Replica], collector: Collector, **keys: Any) -> Fleet:
    return fleet_of(pool, listener={"tracing": {"otlp": collector.address, "sample": "100%", **keys}})


def _passed_on(replica: Replica, number: int = -1) -> tuple[str, str]:
    """Return the trace and the parent in the request to the replica."""
    match = _PARENT.fullmatch(replica.seen[number].header("traceparent") or "")
    assert match
    return match[1], match[2]


@dataclass(frozen=True, slots=True)
class _Traced:
    """The spans of each service, and the replica that got the requests of its listener."""

    spans: Mapping[str, Sequence[Span]]
    members: Mapping[str, Replica]


@pytest.fixture(scope="module")
def traced() -> Iterator[_Traced]:
    """One Envoy with a listener for each service. It sends its spans only every five seconds."""
    with (
        replicas("client-trace", "new-trace", "sampled") as members,
        collecting() as collector,
        running("envoy", side_by_side(_fleets(members, collector))) as gateway,
    ):
        traceparent = {"traceparent": f"00-{_TRACE}-{_SPAN}-01"}
        assert gateway.connect("client-trace").post("/v1/chat", headers=traceparent).ok
        gateway.connect("new-trace").load(3).assert_no_failure()
        gateway.connect("sampled").load(250, 4).assert_no_failure()
        sampled = sum((seen.header("traceparent") or "").endswith("-01") for seen in members[2].seen)
        eventually(lambda: len(collector.spans) == 1 + 3 + sampled, _FLUSHED)
        services = {"client-trace": "my-gateway", "new-trace": "inference-gateway", "sampled": "sampled"}
        spans = {name: [span for span in collector.spans if span.service == services[name]] for name in services}
        yield _Traced(spans, {replica.name: replica for replica in members})


def _fleets(members: list[Replica], collector: Collector) -> dict[str, Fleet]:
    keys: dict[str, dict[str, str]] = {
        "client-trace": {"service": "my-gateway"},
        "new-trace": {},
        "sampled": {"service": "sampled", "sample": "20%"},
    }
    return {replica.name: _fleet([replica], collector, **keys[replica.name]) for replica in members}


def test_span_belongs_to_the_trace_of_the_client(traced: _Traced) -> None:
    (span,) = traced.spans["client-trace"]
    assert (span.trace, span.parent, span.kind) == (_TRACE, _SPAN, "SPAN_KIND_SERVER")
    assert _passed_on(traced.members["client-trace"]) == (_TRACE, span.id)
    assert span.id != _SPAN


def test_request_without_a_trace_starts_one(traced: _Traced) -> None:
    spans = traced.spans["new-trace"]
    assert len({span.trace for span in spans}) == 3
    assert {_passed_on(traced.members["new-trace"], number) for number in range(3)} == {
        (span.trace, span.id) for span in spans
    }


def test_sampling_follows_its_rate(traced: _Traced) -> None:
    """50 of 250 requests are expected; the bounds are more than five standard deviations away."""
    assert 17 <= len(traced.spans["sampled"]) <= 83


def test_dead_collector_does_not_delay_requests() -> None:
    tracing = {"otlp": bind(), "sample": "100%"}
    with replicas("a") as pool, running("envoy", fleet_of(pool, listener={"tracing": tracing})) as gateway:
        load = gateway.load(100, 2)
    load.assert_no_failure()
    assert load.percentile(90) < 2


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_proxy_without_tracing_reports_it(kind: Kind) -> None:
    with replicas("a") as (a,), collecting() as collector, running(kind, _fleet([a], collector)) as gateway:
        assert "warning LB413" in gateway.messages
        gateway.get(headers={"traceparent": f"00-{_TRACE}-{_SPAN}-01"})
    assert _passed_on(a) == (_TRACE, _SPAN)

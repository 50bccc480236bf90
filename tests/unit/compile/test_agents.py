"""Pools with `health.agent`: the resolved checks and telemetry."""

from __future__ import annotations

import pytest

from lbctl.ir.pools import ActiveCheck, AgentCheck, GrpcCheck, HttpCheck, MetricsSource, Pool, TcpCheck
from tests.support.fleet import pool_of

_AGENT_METRICS = MetricsSource("agent", "http://{host}:{agent_port}/metrics")


def _with_agents(health: str = "", more: str = "") -> Pool:
    replicas = '[{name: a, address: "10.0.0.1:8000"}, {name: b, address: "10.0.0.1:8001", agent_port: 9502}]'
    return pool_of(f"{{replicas: {replicas}, health: {{agent: {{port: 9500}}{health}}}{more}}}")


def test_proxies_check_the_agents() -> None:
    pool = _with_agents()
    assert pool.active == ActiveCheck(
        HttpCheck("/health"), port=9500, interval=2000, timeout=1000, unhealthy_threshold=2, healthy_threshold=2
    )
    assert pool.agent == AgentCheck(9500)
    assert [pool.check_port(replica) for replica in pool.replicas] == [9500, 9502]


@pytest.mark.parametrize(
    ("written", "probe", "engine_port"),
    [
        ("http: {path: /ready, statuses: [200, 204]}", HttpCheck("/ready", statuses=(200, 204)), None),
        ("port: 8002, http: {}", HttpCheck(), 8002),
        ("grpc: {service: x.Y}", GrpcCheck("x.Y"), None),
        ("tcp: {}", TcpCheck(), None),
    ],
)
def test_the_agent_keeps_the_check_of_the_engine(written: str, probe: object, engine_port: int | None) -> None:
    pool = _with_agents(f", active: {{{written}, interval: 5s, unhealthy_threshold: 4}}")
    assert pool.active == ActiveCheck(
        HttpCheck("/health?unhealthy_threshold=4"), 9500, 5000, 1000, unhealthy_threshold=4, healthy_threshold=2
    )
    assert pool.agent == AgentCheck(9500, probe, engine_port)
    assert pool.engine_probe == probe


@pytest.mark.parametrize(
    ("written", "interval", "timeout"),
    [("", 2000, 1000), ("interval: 500ms", 500, 500), ("timeout: 3s", 3000, 3000), ("interval: 5s", 5000, 1000)],
)
def test_timing_that_is_not_set_suits_agents(written: str, interval: int, timeout: int) -> None:
    pool = _with_agents(f", active: {{http: {{}}, {written}}}")
    assert pool.active is not None
    assert (pool.active.interval, pool.active.timeout) == (interval, timeout)


def test_the_agent_counts_as_an_active_check_for_fail_open() -> None:
    assert _with_agents(", fail_open: true").fail_open


def test_agents_are_sources_after_those_in_the_files() -> None:
    vllm = '{kind: vllm, url: "http://{address}/metrics"}'
    own = f'{{name: c, address: "10.0.0.3:8000", telemetry: {{interval: 1s, sources: [{vllm}]}}}}'
    pool = pool_of(
        f'{{replicas: [{{name: a, address: "10.0.0.1:8000"}}, {own}], health: {{agent: {{port: 9500}}}},'
        f" telemetry: {{sources: [{vllm}]}}}}"
    )
    sources = (MetricsSource("vllm", "http://{address}/metrics"), _AGENT_METRICS)
    assert pool.telemetry is not None
    assert pool.telemetry.sources == sources
    assert [item.telemetry.sources if item.telemetry else None for item in pool.replicas] == [None, sources]


def test_agent_in_the_files_replaces_the_source_of_agents() -> None:
    own = "http://{host}:9600/metrics"
    pool = _with_agents(more=f', telemetry: {{sources: [{{kind: agent, url: "{own}"}}]}}')
    assert pool.telemetry is not None
    assert pool.telemetry.sources == (MetricsSource("agent", own),)


def test_agents_alone_are_telemetry_with_evidence() -> None:
    pool = _with_agents()
    assert pool.telemetry is not None
    assert (pool.telemetry.interval, pool.telemetry.sources) == (5000, (_AGENT_METRICS,))
    assert pool.weighting.strategy == "adaptive"
    picked = _with_agents(more=", balance: {algorithm: pick}")
    assert picked.telemetry is not None
    assert picked.telemetry.interval == 1000

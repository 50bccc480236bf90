"""Pools with `health.agent`: the check of the cluster, and the port of each endpoint."""

from __future__ import annotations

from typing import Any

import yaml

from lbctl.targets.envoy import TARGET
from tests.support.envoy import envoy_bundle, envoy_view
from tests.support.fleets import fleet_text, pool, replica

_AGENTS = {"health": {"agent": {"port": 9500}}}


def _cluster(text: str) -> dict[str, Any]:
    """Return the cluster of the fleet's pool."""
    clusters = yaml.load(envoy_bundle(text).main.text, yaml.CSafeLoader)["static_resources"]["clusters"]
    found: dict[str, Any] = next(item for item in clusters if item["name"] == "pool")
    return found


def _check_ports(cluster: dict[str, Any]) -> list[int]:
    groups = cluster["load_assignment"]["endpoints"]
    return [item["endpoint"]["health_check_config"]["port_value"] for each in groups for item in each["lb_endpoints"]]


def test_each_endpoint_has_the_port_of_its_agent() -> None:
    replicas = (replica("a", "10.0.0.1:8000"), replica("b", "10.0.0.1:8001", agent_port=9502))
    cluster = _cluster(fleet_text(pool(*replicas, **_AGENTS, protocol="http2")))
    assert _check_ports(cluster) == [9500, 9502]
    (check,) = cluster["health_checks"]
    assert check["http_health_check"]["path"] == "/health"
    assert check["http_health_check"].get("codec_client_type", "HTTP1") == "HTTP1"
    assert (check["interval"], check["timeout"]) == ("2s", "1s")


def test_addresses_of_a_dns_name_have_the_port_of_the_agents() -> None:
    discovered = {"discovery": {"dns": {"name": "llama.ml.svc", "port": 8000}}, **_AGENTS}
    assert _check_ports(_cluster(fleet_text(discovered))) == [9500]


def test_unused_grpc_check_of_the_engine_needs_no_warning() -> None:
    engine = {"active": {"grpc": {"service": "x.Y"}}, "agent": {"port": 9500}}
    assert TARGET.diagnostics(envoy_view(fleet_text(pool(health=engine)))) == ()

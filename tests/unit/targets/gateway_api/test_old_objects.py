"""Objects that stay in the cluster after a newer fleet is applied: they get no requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.targets.gateway_api.test_findings import PROXIES, SECURE, fleet, loading, rendering

Trees = dict[tuple[str, str], dict[str, Any]]
HOSTS = ("10.0.0.1:8001", "10.0.0.2:8002", "10.0.0.3:8002", "[fd00::1]:8001")


def applied(cluster: Trees, *replicas: str) -> Trees:
    """Return the objects of the cluster after those for a pool with these replicas are applied."""
    listed = ", ".join(f'{{address: "{address}"}}' for address in replicas)
    objects, _ = rendering(fleet(pools=f"pools: {{p: {{replicas: [{listed}]}}}}"))
    return cluster | {(item["kind"], item["metadata"]["name"]): item for item in objects}


def addresses(cluster: Trees) -> set[str]:
    """Return the addresses of the endpoints that the routes reach."""
    services = {
        backend["name"]
        for (kind, _), item in cluster.items()
        if kind == "HTTPRoute"
        for rule in item["spec"]["rules"]
        for backend in rule["backendRefs"]
    }
    return {
        f"[{host}]:{port['port']}" if ":" in host else f"{host}:{port['port']}"
        for (kind, _), item in cluster.items()
        if kind == "EndpointSlice" and item["metadata"]["labels"]["kubernetes.io/service-name"] in services
        for endpoint in item["endpoints"]
        for host in endpoint["addresses"]
        for port in item["ports"]
    }


@pytest.mark.parametrize(
    "rest", [HOSTS[1:], HOSTS[:1], HOSTS[1:3], HOSTS[3:], (HOSTS[0], HOSTS[3]), (HOSTS[0], HOSTS[2]), ("a.example:80",)]
)
def test_removed_replica_gets_no_requests(rest: tuple[str, ...]) -> None:
    cluster = applied({}, *HOSTS)
    assert addresses(cluster) == set(HOSTS)
    assert addresses(applied(cluster, *rest)) == set(rest) - {"a.example:80"}
    assert addresses(applied(applied({}, *rest), *HOSTS)) == set(HOSTS)


def test_routes_are_applied_after_their_services() -> None:
    kinds = [kind for kind, _ in applied({}, *HOSTS)]
    assert max(i for i, kind in enumerate(kinds) if kind == "EndpointSlice") < kinds.index("HTTPRoute")


REPLICAS = '{replicas: [{address: "10.0.0.1:80"}]}'
EDGE_EU = ", edge-eu: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg}}}"
TLS = "pools: {p: {replicas: [{address: '10.0.0.1:80'}], tls: {ca: ca.pem, server_name: p.example.com}}}"


def test_another_entry_renames_nothing() -> None:
    alone, _ = rendering(fleet(listeners=SECURE, pools=TLS))
    together, _ = rendering(fleet(listeners=SECURE, pools=TLS, proxies=PROXIES[:-1] + EDGE_EU), "edge")
    assert together == alone
    assert {item["metadata"]["name"] for item in alone} >= {"edge", "edge-p", "edge-p-1", "edge-web"}


@pytest.mark.parametrize(("listener", "pool"), [("a", "eu-p"), ("eu-web", "q")])
def test_entries_cannot_have_the_same_object(listener: str, pool: str) -> None:
    text = fleet(
        listeners=f'listeners: {{web: {{bind: "0.0.0.0:80"}}, {listener}: {{bind: "0.0.0.0:81"}}}}',
        routes=f"routes: {{r: {{pool: p}}, s: {{match: {{path_prefix: /s}}, pool: {pool}}}}}",
        pools=f"pools: {{p: {REPLICAS}, {pool}: {REPLICAS}}}",
        proxies=PROXIES[:-1] + EDGE_EU,
    )
    assert [error.split()[1] for error in loading(text)[1]] == ["LB171"]
    assert loading(text.replace("edge-eu: {kind", "paris: {kind"))[1] == []
    assert loading(text.replace("ml, gateway_class: eg}}}", "eu, gateway_class: eg}}}"))[1] == []

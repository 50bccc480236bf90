"""Backends of Envoy Gateway: weights, standbys, host names, TLS and drained replicas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.targets.envoy_gateway.rendering import fleet, named, rendering

TLS = "tls: {ca: ca.pem, server_name: engine.example}"


def backends(pools: str, **sections: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the specification of each Backend by name, and the codes of the warnings."""
    objects, codes = rendering(fleet(pools=f"pools: {{p: {{{pools}}}}}", **sections))
    return {name: item["spec"] for name, item in named(objects, "Backend").items()}, codes


def references(objects: list[dict[str, Any]], route: str = "edge-web") -> list[tuple[str, int | None]]:
    (rule,) = named(objects, "HTTPRoute")[route]["spec"]["rules"]
    return [(item["name"], item.get("weight")) for item in rule.get("backendRefs", [])]


def test_equal_weights_share_a_backend() -> None:
    replicas = [("10.0.0.1", 5, "a"), ("10.0.0.2", 1, "b"), ("10.0.0.3", 1, "b")]
    listed = ", ".join(f'{{address: "{host}:80", weight: {weight}, zone: {zone}}}' for host, weight, zone in replicas)
    objects, codes = rendering(fleet(pools=f"pools: {{p: {{replicas: [{listed}]}}}}"))
    assert references(objects) == [("edge-p-1", 100), ("edge-p-2", 40)]
    second = named(objects, "Backend")["edge-p-2"]["spec"]["endpoints"]
    assert second == [{"ip": {"address": f"10.0.0.{n}", "port": 80}, "zone": "b"} for n in (2, 3)]
    assert codes == []


def test_drained_replicas_are_left_out() -> None:
    found, _ = backends('replicas: [{address: "10.0.0.1:80"}, {address: "10.0.0.2:80", drain: true}]')
    assert [item["ip"]["address"] for item in found["edge-p-1"]["endpoints"]] == ["10.0.0.1"]


def test_route_without_a_ready_replica_returns_503() -> None:
    objects, codes = rendering(fleet(pools='pools: {p: {replicas: [{address: "10.0.0.1:80", drain: true}]}}'))
    (rule,) = named(objects, "HTTPRoute")["edge-web"]["spec"]["rules"]
    assert "backendRefs" not in rule
    assert rule["filters"][0]["extensionRef"]["kind"] == "HTTPRouteFilter"
    assert "LB450" in codes


def test_pin_to_an_empty_pool_returns_503() -> None:
    pools = (
        'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}, q: {replicas: [{address: "10.0.0.2:80", drain: true}]}, '
        's: {replicas: [{address: "10.0.0.3:80", drain: true}]}}'
    )
    pin = "pin: [{header: x-v, equals: q, pool: q}], mirror: {pool: s}"
    objects, codes = rendering(fleet(routes=f"routes: {{r: {{split: {{p: 1, q: 1}}, {pin}}}}}", pools=pools))
    pinned, rest = named(objects, "HTTPRoute")["edge-web"]["spec"]["rules"]
    assert pinned["filters"][0]["extensionRef"]["name"] == "edge-closed"
    assert [item["name"] for item in rest["backendRefs"]] == ["edge-p-1"]
    assert "filters" not in rest
    assert codes == ["LB450", "LB450"]


def test_host_names_are_separate_backends() -> None:
    found, _ = backends('replicas: [{address: "10.0.0.1:80"}, {address: "GPU-1.example:81"}]')
    assert found["edge-p-1"]["endpoints"] == [{"ip": {"address": "10.0.0.1", "port": 80}}]
    assert found["edge-p-2"]["endpoints"] == [{"fqdn": {"hostname": "gpu-1.example", "port": 81}}]


def test_second_priority_is_a_fallback() -> None:
    replicas = ", ".join(f'{{address: "10.0.0.{rank}:80", priority: {rank}}}' for rank in range(3))
    found, codes = backends(f"replicas: [{replicas.replace('10.0.0.0', '10.0.0.9')}]")
    assert [item.get("fallback") for item in found.values()] == [None, True]
    assert [item["endpoints"][0]["ip"]["address"] for item in found.values()] == ["10.0.0.9", "10.0.0.1"]
    assert len(codes) == 1


LIGHT, HEAVY = '{address: "10.0.0.1:80", weight: 1, zone: a}', '{address: "10.0.0.2:80", weight: 2, zone: b}'
STANDBY, NAMED = '{address: "10.0.0.3:80", weight: 1, priority: 1}', '{address: "a.example:80", weight: 1}'


@pytest.mark.parametrize(
    ("locality", "replicas", "used", "codes"),
    [
        ("", (LIGHT, HEAVY, STANDBY), 3, []),
        ("", (LIGHT, NAMED), 2, ["LB450"]),
        ("", (LIGHT, NAMED, STANDBY), 2, ["LB464", "LB450"]),
        ("zone", (LIGHT,), 1, []),
        ("zone", (LIGHT, STANDBY), 1, ["LB464"]),
        ("zone", (LIGHT, HEAVY), 2, ["LB450"]),
    ],
)
def test_no_cluster_takes_over_for_another(locality: str, replicas: tuple[str], used: int, codes: list[str]) -> None:
    pool = f"replicas: [{', '.join(replicas)}]" + (f", locality: {{prefer: {locality}}}" if locality else "")
    objects, found = rendering(fleet(pools=f"pools: {{p: {{{pool}}}}}"))
    assert len(references(objects)) == used
    assert found == codes


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((LIGHT,), ["LB467"]),
        ((LIGHT, STANDBY), ["LB467"]),
        ((LIGHT, HEAVY), ["LB467", "LB492"]),
        ((LIGHT, NAMED), ["LB450", "LB467", "LB492"]),
    ],
)
def test_backends_of_a_picked_pool(replicas: tuple[str], expected: list[str]) -> None:
    pool = f"replicas: [{', '.join(replicas)}], locality: {{prefer: zone}}, balance: {{algorithm: pick}}"
    objects, codes = rendering(fleet(pools=f"pools: {{p: {{{pool}}}}}"))
    (policy,) = named(objects, "BackendTrafficPolicy").values()
    assert "zoneAware" not in policy["spec"]["loadBalancer"]
    assert sorted(codes) == expected
    assert len(references(objects)) == len(replicas)


def test_pools_with_two_protocols_have_separate_clusters() -> None:
    grpc = f"{{replicas: [{LIGHT}, {STANDBY}], protocol: grpc}}"
    pools = f'pools: {{p: {grpc}, q: {{replicas: [{{address: "10.0.0.9:80"}}]}}}}'
    objects, codes = rendering(fleet(routes="routes: {r: {split: {p: 90, q: 10}}}", pools=pools))
    (rule,) = named(objects, "HTTPRoute")["edge-web"]["spec"]["rules"]
    assert [(item["name"], len(item["filters"])) for item in rule["backendRefs"]] == [("edge-p-1", 1), ("edge-q-1", 1)]
    assert codes == ["LB464"]


def test_dns_name_is_one_endpoint() -> None:
    found, _ = backends("discovery: {dns: {name: engines.example, port: 8000}}")
    assert found["edge-p"]["endpoints"] == [{"fqdn": {"hostname": "engines.example", "port": 8000}}]


def test_discovered_pool_is_the_service_itself() -> None:
    discovery = "discovery: {kubernetes: {namespace: ml, service: llama, port: http, service_port: 8000}}"
    objects, _ = rendering(fleet(pools=f"pools: {{p: {{{discovery}}}}}"))
    (rule,) = named(objects, "HTTPRoute")["edge-web"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "llama", "port": 8000}]
    assert named(objects, "Backend") == {}


def test_split_keeps_shares_over_classes() -> None:
    pools = (
        'pools: {p: {replicas: [{address: "10.0.0.1:80", weight: 3}, {address: "10.0.0.2:80", weight: 1}]}, '
        'q: {replicas: [{address: "10.0.0.3:80"}]}}'
    )
    objects, _ = rendering(fleet(routes="routes: {r: {split: {p: 90, q: 10}}}", pools=pools))
    weights = [weight for _, weight in references(objects)]
    assert [weight / weights[2] for weight in weights] == [6.75, 2.25, 1]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ("tls: {}", {"insecureSkipVerify": True, "alpnProtocols": ["http/1.1"]}),
        ("tls: {}, protocol: grpc", {"insecureSkipVerify": True, "alpnProtocols": ["h2"]}),
        (
            TLS,
            {
                "caCertificateRefs": [{"name": "edge-p-ca", "group": "", "kind": "ConfigMap"}],
                "sni": "engine.example",
                "alpnProtocols": ["http/1.1"],
            },
        ),
        (
            "tls: {server_name: engine.example, certificate: c.crt, key: c.key}",
            {
                "insecureSkipVerify": True,
                "sni": "engine.example",
                "clientCertificateRef": {"kind": "Secret", "name": "edge-p-client"},
                "alpnProtocols": ["http/1.1"],
            },
        ),
    ],
)
def test_backend_has_the_tls_settings(tls: str, expected: dict[str, Any]) -> None:
    found, _ = backends(f'replicas: [{{address: "10.0.0.1:443"}}], {tls}')
    assert found["edge-p-1"]["tls"] == expected


def test_unknown_name_in_certificates_closes_the_route() -> None:
    text = 'pools: {p: {replicas: [{address: "10.0.0.1:443"}, {address: "10.0.0.2:443"}], tls: {ca: ca.pem}}}'
    objects, codes = rendering(fleet(pools=text))
    assert named(objects, "Backend") == {}
    assert "LB489" in codes


@pytest.mark.parametrize(
    ("replica", "hint"),
    [
        ("127.0.0.1:80", "the gateway can reach"),
        ("unix:/run/engine.sock", "the gateway can reach"),
    ],
)
def test_unreachable_replicas_are_errors(replica: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        rendering(fleet(pools=f'pools: {{p: {{replicas: [{{address: "{replica}"}}]}}}}'))


def test_mirror_gets_all_replicas() -> None:
    pools = (
        'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}, '
        'q: {replicas: [{address: "10.0.0.2:80", weight: 2}, {address: "10.0.0.3:80", weight: 1}]}}'
    )
    objects, _ = rendering(fleet(routes="routes: {r: {pool: p, mirror: {pool: q}}}", pools=pools))
    (rule,) = named(objects, "HTTPRoute")["edge-web"]["spec"]["rules"]
    name = rule["filters"][0]["requestMirror"]["backendRef"]["name"]
    assert name == "edge-q-mirror"
    assert len(named(objects, "Backend")[name]["spec"]["endpoints"]) == 2

"""Pools with the picker as EnvoyExtensionPolicies."""

from __future__ import annotations

import pytest

from tests.unit.targets.envoy_gateway.policies import EXISTING, rendered

SERVICE = "discovery: {kubernetes: {namespace: ml, service: s, port: 8000, selector: {app: s}}}"
PICKED = f"{{balance: {{algorithm: pick, pick: {{timeout: 200ms}}}}, {SERVICE}}}"
POLICY = "EnvoyExtensionPolicy edge-r-p"


def test_picker_may_fail_and_no_client_names_a_replica() -> None:
    found = rendered(pools=f"pools: {{p: {PICKED}}}")
    assert found.specs[POLICY]["extProc"] == [
        {
            "backendRefs": [{"name": "lbctl-picker", "port": 18001}],
            "failOpen": True,
            "messageTimeout": "200ms",
            "processingMode": {"request": {"body": "BufferedPartial"}, "response": {}},
        }
    ]
    assert [item["sectionName"] for item in found.specs[POLICY]["targetRefs"]] == ["r"]
    early = found.specs["ClientTrafficPolicy edge-web"]["headers"]["earlyRequestHeaders"]
    assert "x-gateway-destination-endpoint" in early["remove"]
    (note,) = found.notes
    assert note.startswith("pool p needs `lbctl picker --pool p` at the Service lbctl-picker in ml, port 18001")


def test_certificate_of_each_picker_is_verified() -> None:
    routes = "routes: {a: {match: {path: /a}, pool: p}, b: {match: {path: /b}, pool: q}}"
    found = rendered(routes=routes, pools=f"pools: {{p: {PICKED}, q: {PICKED.replace('service: s', 'service: t')}}}")
    bundle = {"group": "", "kind": "ConfigMap", "name": "lbctl-picker-ca"}
    for service in ("lbctl-picker-p", "lbctl-picker-q"):
        assert found.specs[f"BackendTLSPolicy edge-{service}"] == {
            "targetRefs": [{"group": "", "kind": "Service", "name": service}],
            "validation": {"caCertificateRefs": [bundle], "hostname": service},
        }
    assert found.commands == [
        "kubectl -n ml create configmap lbctl-picker-ca --from-file=ca.crt=FILE (FILE is the pickers' CA bundle)"
    ]


@pytest.mark.parametrize(
    ("route", "pool"), [(", websocket: true", PICKED), ("", PICKED.replace("{balance", "{protocol: grpc, balance"))]
)
def test_picker_reads_no_bodies_of_streams(route: str, pool: str) -> None:
    routes = f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: p{route}}}}}"
    (processing,) = rendered(routes=routes, pools=f"pools: {{p: {pool}}}").specs[POLICY]["extProc"]
    assert processing["processingMode"] == {"request": {}, "response": {}}


def test_each_of_several_pools_has_its_own_picker() -> None:
    routes = "routes: {a: {match: {path: /a}, pool: p}, b: {match: {path: /b}, pool: q}}"
    found = rendered(routes=routes, pools=f"pools: {{p: {PICKED}, q: {PICKED.replace('service: s', 'service: t')}}}")
    names = [spec["extProc"][0]["backendRefs"][0]["name"] for name, spec in found.specs.items() if "Extension" in name]
    assert names == ["lbctl-picker-p", "lbctl-picker-q"]


def test_split_has_no_picker_but_its_pin_has() -> None:
    routes = "routes: {r: {split: {p: 1, q: 1}, pin: [{header: x-pool, equals: p, pool: p}]}}"
    found = rendered(routes=routes, pools=f"pools: {{p: {PICKED}, q: {PICKED.replace('service: s', 'service: t')}}}")
    assert [item["sectionName"] for item in found.specs[POLICY]["targetRefs"]] == ["r.pin-1"]
    assert found.warnings == ["LB492 routes.r.split"]


def test_existing_gateway_has_no_picker() -> None:
    found = rendered(pools=f"pools: {{p: {PICKED}}}", place=EXISTING)
    assert "LB492 pools.p.balance" in found.warnings
    assert not found.specs
    assert not found.notes
    assert not found.commands

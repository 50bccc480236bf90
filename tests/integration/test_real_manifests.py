"""A real API server accepts the golden objects of each kind, with the rules (CEL) of the oldest and the newest version.

`make test-manifests` runs these tests (`tests.support.real_kubernetes`). The core kinds are not custom
resources: `tests/golden/test_kubernetes.py` validates them by their schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden.test_kubernetes import NAMES, accepted, enter, rendered
from tests.support.gateway_kinds import KINDS
from tests.support.kubernetes_objects import GROUPS, VERSIONS, Tree, definitions, plural
from tests.support.processes.waiting import eventually
from tests.support.real_kubernetes import DEFINITIONS, OPT_IN, RealApiServer, real_api_server

pytestmark = OPT_IN
Server = tuple[str, str, RealApiServer]
"""Kind, version of the kind, and a server that has its resources."""


@pytest.fixture(scope="module", params=[(kind, version) for kind in KINDS for version in VERSIONS[kind]], ids="-".join)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start an API server with the resources of one version of a kind."""
    kind, version = request.param
    with real_api_server(tmp_path_factory.mktemp("kube-api")) as started:
        listed = definitions(kind, version)
        for definition in listed:
            status, document = started.call("POST", DEFINITIONS, definition)
            assert status == 201, document
        eventually(lambda: all(is_established(started, item["metadata"]["name"]) for item in listed))
        yield kind, version, started


def is_established(server: RealApiServer, name: str) -> bool:
    conditions = server.call("GET", f"{DEFINITIONS}/{name}")[1].get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def apply(server: RealApiServer, item: Tree, *, dry_run: bool = False) -> tuple[int, dict[str, Any]]:
    metadata = item["metadata"]
    path = f"/apis/{item['apiVersion']}/namespaces/{metadata['namespace']}/{plural(item['kind'])}/{metadata['name']}"
    query = "fieldManager=lbctl&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
    return server.call("PATCH", f"{path}?{query}", item, "application/apply-patch+yaml")


@pytest.mark.parametrize("case", NAMES)
def test_server_accepts_the_objects_unchanged(
    case: str,
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, version, api = server
    enter(case, kind, tmp_path, monkeypatch)
    for entry in accepted(case, kind):
        code, text, messages = rendered(kind, entry, capsys, "--proxy-version", version.rpartition(".")[0])
        assert code == 0, messages
        for item in yaml.safe_load_all(text):
            if item["apiVersion"].partition("/")[0] in GROUPS:
                results = [apply(api, item) for _ in range(3)]  # a new Gateway changes once, by its default status
                assert {status for status, _ in results} <= {200, 201}, results[0]
                assert results[1][1]["metadata"]["resourceVersion"] == results[2][1]["metadata"]["resourceVersion"]


# ── Limits and rules ─────────────────────────────────────────────────────────────────────────────────────────────────

Change = Callable[[Tree], object]


def changed(base: Tree, change: Change) -> Tree:
    """Return an object with a changed spec."""
    item = deepcopy(base)
    change(item["spec"])
    return item


def example(api_version: str, kind: str, **spec: Any) -> Tree:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "probe", "namespace": "ml"}, "spec": spec}


def prefix(value: str) -> Tree:
    return {"path": {"type": "PathPrefix", "value": value}}


def backends(count: int) -> list[Tree]:
    return [{"name": f"s{index}", "port": 80} for index in range(count)]


def rules(count: int, matches: int) -> list[Tree]:
    return [
        {
            "name": f"r{index}",
            "matches": [prefix(f"/v{index}/{number}") for number in range(matches)],
            "backendRefs": backends(1),
        }
        for index in range(count)
    ]


def headers(count: int) -> list[Tree]:
    return [{"name": f"h{index}", "value": "x"} for index in range(count)]


def change_headers(count: int) -> list[Tree]:
    return [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": headers(count)}}]


def sections(count: int) -> list[Tree]:
    return [{**SECTION, "name": f"n{index}", "hostname": f"h{index}.example.com"} for index in range(count)]


HTTP_ROUTE = example("gateway.networking.k8s.io/v1", "HTTPRoute", parentRefs=[{"name": "edge"}], rules=rules(1, 1))
SECTION = {"name": "a", "port": 80, "protocol": "HTTP"}
GATEWAY = example("gateway.networking.k8s.io/v1", "Gateway", gatewayClassName="eg", listeners=[SECTION])
PICKER = {"name": "lbctl-picker", "port": {"number": 18001}}
INFERENCE_POOL = example(
    "inference.networking.k8s.io/v1",
    "InferencePool",
    selector={"matchLabels": {"app": "s"}},
    targetPorts=[{"number": 8000}],
    endpointPickerRef=PICKER,
)
TARGET = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r", "sectionName": "r"}
TRAFFIC_POLICY = example(
    "gateway.envoyproxy.io/v1alpha1",
    "BackendTrafficPolicy",
    targetRefs=[TARGET],
    loadBalancer={"type": "LeastRequest", "slowStart": {"window": "30s"}},
)
PROCESSOR = {
    "backendRefs": [{"name": "lbctl-picker", "port": 18001}],
    "failOpen": True,
    "processingMode": {"request": {"body": "BufferedPartial"}},
}
EXTENSION_POLICY = example(
    "gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", targetRefs=[TARGET], extProc=[PROCESSOR]
)
ENDPOINT = {"ip": {"address": "10.0.0.1", "port": 80}}
BACKEND = example("gateway.envoyproxy.io/v1alpha1", "Backend", type="Endpoints", endpoints=[ENDPOINT])
DESTINATION = {"destination": {"host": "s.ml.svc.cluster.local", "port": {"number": 80}}}
VIRTUAL_SERVICE = example(
    "networking.istio.io/v1",
    "VirtualService",
    hosts=["*"],
    gateways=["edge"],
    http=[{"name": "r", "route": [DESTINATION], "retries": {"attempts": 2, "retryOn": "connect-failure"}}],
)
DESTINATION_RULE = example(
    "networking.istio.io/v1",
    "DestinationRule",
    host="s.ml.svc.cluster.local",
    trafficPolicy={"loadBalancer": {"simple": "LEAST_REQUEST"}, "connectionPool": {"http": {"idleTimeout": "4s"}}},
)
SERVICE_ENTRY = example(
    "networking.istio.io/v1",
    "ServiceEntry",
    hosts=["p.edge.lbctl.internal"],
    location="MESH_EXTERNAL",
    resolution="STATIC",
    ports=[{"name": "http", "number": 80, "protocol": "HTTP"}],
    endpoints=[{"address": "10.0.0.1", "weight": 5}],
)

_GATEWAY_API: Mapping[str, tuple[int, Tree]] = {
    "16 rules, 128 matches": (201, changed(HTTP_ROUTE, lambda spec: spec.update(rules=rules(16, 8)))),
    "17 rules": (422, changed(HTTP_ROUTE, lambda spec: spec.update(rules=rules(17, 1)))),
    "129 matches": (422, changed(HTTP_ROUTE, lambda spec: spec.update(rules=rules(3, 43)))),
    "64 matches of a rule": (201, changed(HTTP_ROUTE, lambda spec: spec.update(rules=rules(2, 64)))),
    "65 matches of a rule": (422, changed(HTTP_ROUTE, lambda spec: spec.update(rules=rules(1, 65)))),
    "16 backends": (201, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(backendRefs=backends(16)))),
    "17 backends": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(backendRefs=backends(17)))),
    "17 conditions on headers": (
        422,
        changed(HTTP_ROUTE, lambda spec: spec["rules"][0]["matches"][0].update(headers=headers(17))),
    ),
    "16 headers": (201, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(filters=change_headers(16)))),
    "17 headers": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(filters=change_headers(17)))),
    "weight above a million": (
        422,
        changed(HTTP_ROUTE, lambda spec: spec["rules"][0]["backendRefs"][0].update(weight=1_000_001)),
    ),
    "Service without port": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0]["backendRefs"][0].pop("port"))),
    "method": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0]["matches"][0].update(method="PROPFIND"))),
    "path with a space": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0]["matches"][0].update(prefix("/a b")))),
    "long duration": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(timeouts={"request": "100000s"}))),
    "fraction": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(timeouts={"request": "2m30.5s"}))),
    "name of a rule": (422, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(name="CLOSED"))),
    "experimental retry": (500, changed(HTTP_ROUTE, lambda spec: spec["rules"][0].update(retry={"attempts": 2}))),
    "host with a port": (422, changed(HTTP_ROUTE, lambda spec: spec.update(hostnames=["a.example:8080"]))),
    "two listeners of a port": (
        422,
        changed(GATEWAY, lambda spec: spec.update(listeners=[SECTION, {**SECTION, "name": "b"}])),
    ),
    "64 listeners": (201, changed(GATEWAY, lambda spec: spec.update(listeners=sections(64)))),
    "65 listeners": (422, changed(GATEWAY, lambda spec: spec.update(listeners=sections(65)))),
    "9 ports of a pool": (
        422,
        changed(INFERENCE_POOL, lambda spec: spec.update(targetPorts=[{"number": 8000 + i} for i in range(9)])),
    ),
    "picker without port": (422, changed(INFERENCE_POOL, lambda spec: spec["endpointPickerRef"].pop("port"))),
}


_ISTIO: Mapping[str, tuple[int, Tree]] = {
    "virtual service": (201, VIRTUAL_SERVICE),
    "unknown key": (500, changed(VIRTUAL_SERVICE, lambda spec: spec["http"][0]["retries"].update(retryon="x"))),
    "only the webhook knows conditions of retries": (
        201,
        changed(VIRTUAL_SERVICE, lambda spec: spec["http"][0]["retries"].update(retryOn="nonsense")),
    ),
    "destination rule": (201, DESTINATION_RULE),
    "two algorithms": (
        422,
        changed(
            DESTINATION_RULE,
            lambda spec: spec["trafficPolicy"]["loadBalancer"].update(consistentHash={"useSourceIp": True}),
        ),
    ),
    "idle timeout of 0": (
        422,
        changed(
            DESTINATION_RULE, lambda spec: spec["trafficPolicy"]["connectionPool"]["http"].update(idleTimeout="0s")
        ),
    ),
    "service entry": (201, SERVICE_ENTRY),
    "repeated port": (
        422,
        changed(SERVICE_ENTRY, lambda spec: spec["ports"].append({**spec["ports"][0], "name": "b"})),
    ),
    "wildcard host": (422, changed(SERVICE_ENTRY, lambda spec: spec.update(hosts=["*"]))),
}
_ENVOY_GATEWAY: Mapping[str, tuple[int, Tree]] = {
    "traffic policy": (201, TRAFFIC_POLICY),
    "policy of a Service": (
        422,
        changed(TRAFFIC_POLICY, lambda spec: spec.update(targetRefs=[{"group": "", "kind": "Service", "name": "s"}])),
    ),
    "slow start with a hash": (
        422,
        changed(
            TRAFFIC_POLICY,
            lambda spec: spec["loadBalancer"].update(type="ConsistentHash", consistentHash={"type": "SourceIP"}),
        ),
    ),
    "extension policy": (201, EXTENSION_POLICY),
    "streamed body that fails open": (
        422,
        changed(
            EXTENSION_POLICY,
            lambda spec: spec["extProc"][0]["processingMode"]["request"].update(body="FullDuplexStreamed"),
        ),
    ),
    "backend": (201, BACKEND),
    "weight of an endpoint": (500, changed(BACKEND, lambda spec: spec["endpoints"][0].update(weight=5))),
    "names and addresses": (
        422,
        changed(BACKEND, lambda spec: spec["endpoints"].append({"fqdn": {"hostname": "a.example.com", "port": 80}})),
    ),
}
EXPECTED = {"gateway-api": _GATEWAY_API, "istio": _ISTIO, "envoy-gateway": {**_GATEWAY_API, **_ENVOY_GATEWAY}}
"""Status of each object: 422 if it breaks a rule, and 500 if it has an unknown key."""


def test_server_has_the_limits_that_lbctl_keeps(server: Server) -> None:
    """A limit that moves in a new version would otherwise stay unnoticed."""
    kind, _, api = server
    expected = {name: status for name, (status, _) in EXPECTED[kind].items()}
    assert {name: apply(api, item, dry_run=True)[0] for name, (_, item) in EXPECTED[kind].items()} == expected

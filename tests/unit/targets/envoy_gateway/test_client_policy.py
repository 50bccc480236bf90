"""Settings of listeners as ClientTrafficPolicies."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.targets.envoy_gateway.policies import EXISTING, rendered

TLS = "tls: {certificates: [{certificate: a.crt, key: a.key}]}"
CLIENTS = (
    "tls: {certificates: [{certificate: a.crt, key: a.key}], client_ca: ca.pem, client_crl: crl.pem, "
    "client_certificate: CERTIFICATE}"
)


def policy(settings: str = "", **options: Any) -> dict[str, Any]:
    """Return the policy of a listener with these settings."""
    listeners = f'listeners: {{web: {{bind: "0.0.0.0:443"{settings and ", "}{settings}}}}}'
    return rendered(listeners, **options).specs["ClientTrafficPolicy edge-web"]


def test_policy_selects_all_parts_of_its_listener() -> None:
    hosts = "{certificate: b.crt, key: b.key, hosts: [b.example.com, c.example.com]}"
    spec = policy(f"tls: {{certificates: [{{certificate: a.crt, key: a.key}}, {hosts}]}}")
    assert [target["sectionName"] for target in spec["targetRefs"]] == ["web", "web.1", "web.2"]
    assert {target["name"] for target in spec["targetRefs"]} == {"edge"}


def test_settings_of_a_plain_listener() -> None:
    spec = policy()
    assert spec["path"] == {"escapedSlashesAction": "UnescapeAndForward", "disableMergeSlashes": True}
    assert spec["timeout"] == {"http": {"requestHeadersReceivedTimeout": "15s", "idleTimeout": "3600s"}}
    assert not {"tls", "clientIPDetection", "proxyProtocol"} & spec.keys()


def test_limits_and_proxy_protocol() -> None:
    spec = policy("max_connections: 20000, proxy_protocol: true")
    assert spec["connection"]["connectionLimit"] == {"value": 20000}
    assert spec["proxyProtocol"] == {"optional": False}


@pytest.mark.parametrize(("http2", "protocols"), [("true", ["h2", "http/1.1"]), ("false", ["http/1.1"])])
def test_tls_versions_and_protocols(http2: str, protocols: list[str]) -> None:
    tls = TLS.replace("tls: {", "tls: {min_version: '1.3', ")
    assert policy(f"{tls}, http2: {http2}")["tls"] == {"minVersion": "1.3", "alpnProtocols": protocols}


@pytest.mark.parametrize(
    ("version", "certificate", "mode"),
    [
        ((1, 9), "required", {"mode": "RequireAndVerify"}),
        ((1, 8), "optional", {"mode": "VerifyIfGiven"}),
        ((1, 7), "required", {"optional": False}),
        ((1, 7), "optional", {"optional": True}),
    ],
)
def test_client_certificates(version: tuple[int, ...], certificate: str, mode: dict[str, object]) -> None:
    validation = policy(CLIENTS.replace("CERTIFICATE", certificate), version=version)["tls"]["clientValidation"]
    bundle = {"name": "edge-web-clients", "group": "", "kind": "ConfigMap"}
    revoked = {"refs": [{"group": "", "kind": "ConfigMap", "name": "edge-web-revoked"}]}
    assert validation == {**mode, "caCertificateRefs": [bundle], "crl": revoked}


def test_revocation_lists_are_a_prerequisite() -> None:
    found = rendered(f'listeners: {{web: {{bind: "0.0.0.0:443", {CLIENTS.replace("CERTIFICATE", "required")}}}}}')
    assert found.commands == ["kubectl -n ml create configmap edge-web-revoked --from-file=ca.crl=crl.pem"]


def test_trusted_load_balancers() -> None:
    spec = policy('client_address: {trusted: [10.0.0.0/8, "fd00::/8"]}')
    assert spec["clientIPDetection"] == {"xForwardedFor": {"trustedCIDRs": ["10.0.0.0/8", "fd00::/8"]}}
    assert spec["headers"]["requestID"] == "PreserveOrGenerate"
    assert not is_removed(spec, "x-forwarded-for")
    assert is_removed(spec, "x_forwarded-for")
    assert is_removed(spec, "x-forwarded-proto")


def is_removed(spec: dict[str, Any], header: str) -> bool:
    """Return whether a client's header is removed before anything reads it."""
    early = spec["headers"]["earlyRequestHeaders"]
    tests = {"Prefix": header.startswith, "RegularExpression": lambda value: re.fullmatch(value, header) is not None}
    return header in early["remove"] or any(tests[item["type"]](item["value"]) for item in early["removeOnMatch"])


@pytest.mark.parametrize(
    "header",
    [
        "x-gateway-destination-endpoint",
        "x-envoy-retry-on",
        "x-forwarded-for",
        "x_forwarded_host",
        "x-real-ip",
        "content_length",
        "x-tenant",
        "x_tenant",
    ],
)
def test_no_client_may_send_these_headers(header: str) -> None:
    keys = "auth: {basic: {file: users.yaml}, forward_tenant: x-tenant}"
    spec = policy(routes=f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: p, {keys}}}}}")
    assert is_removed(spec, header)
    assert spec["headers"]["withUnderscoresAction"] == "Allow"


def test_lookalikes_of_credentials_do_not_reach_a_hosted_api() -> None:
    hosted = '{upstream: {host: api.example.com}, replicas: [{address: "api.example.com:443"}], tls: {ca: system}}'
    spec = policy(pools=f"pools: {{p: {hosted}}}")
    assert [is_removed(spec, name) for name in ("x_api-key", "api_key", "x-api-key")] == [True, True, False]
    assert len(spec["headers"]["earlyRequestHeaders"]["removeOnMatch"]) <= 64


@pytest.mark.parametrize("header", ["session_id", "content-length", "transfer-encoding", "authorization"])
def test_other_headers_are_kept(header: str) -> None:
    assert not is_removed(policy(), header)


def test_expressions_suit_an_envoy_with_any_bootstrap() -> None:
    values = [item["value"] for item in policy()["headers"]["earlyRequestHeaders"]["removeOnMatch"]]
    assert max(map(len, values)) < 512
    assert len(values) <= 64


def test_too_many_names_of_headers_are_an_error() -> None:
    names = ", ".join(f"x-header-with-a-long-name-{index}" for index in range(16))
    route = "{{match: {{path: /{0}}}, pool: p, headers: {{request: {{remove: [{1}]}}}}}}"
    routes = ", ".join(f"r{index}: {route.format(index, names.replace('long', f'l{index}'))}" for index in range(3))
    assert "LB172 listeners.web" in rendered(routes=f"routes: {{{routes}}}").warnings


def test_old_version_has_one_idle_timeout() -> None:
    routes = "routes: {a: {match: {path: /a}, pool: p, timeouts: {idle: 1m}}, b: {match: {path: /b}, pool: p}}"
    assert policy(routes=routes, version=(1, 7))["timeout"]["http"] == {
        "idleTimeout": "3600s",
        "streamIdleTimeout": "300s",
    }


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ("client_address: {trusted: [10.0.0.0/8], header: x-real-ip}", "LB406 listeners.web.client_address.header"),
        ("http2: false", "LB405 listeners.web.http2"),
        ("request_id: x-trace", "LB414 listeners.web.request_id"),
    ],
)
def test_settings_without_a_policy(settings: str, warning: str) -> None:
    assert rendered(f'listeners: {{web: {{bind: "0.0.0.0:80", {settings}}}}}').warnings == [warning]


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ("http2: false", "LB405 listeners.web.http2"),
        ("proxy_protocol: true", "LB407 listeners.web.proxy_protocol"),
        ("timeouts: {idle: 5m}", "LB411 listeners.web.timeouts"),
        ("client_address: {trusted: [10.0.0.0/8]}", "LB406 listeners.web.client_address"),
    ],
)
def test_existing_gateway_has_the_policies_of_its_owner(settings: str, warning: str) -> None:
    found = rendered(f'listeners: {{web: {{bind: "0.0.0.0:80", {settings}}}}}', place=EXISTING)
    assert found.warnings == [warning, "LB174 proxies.edge.kubernetes.gateway"]
    assert not found.specs


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ("max_connections: 10", "LB408 listeners.web.max_connections"),
        (CLIENTS.replace("CERTIFICATE", "required"), "LB403 listeners.web.tls.client_ca"),
    ],
)
def test_protections_close_routes_of_an_existing_gateway(settings: str, warning: str) -> None:
    found = rendered(f'listeners: {{web: {{bind: "0.0.0.0:80", {settings}}}}}', place=EXISTING)
    assert warning in found.warnings
    assert not any(rule.way.shares for rule in found.context.placed)

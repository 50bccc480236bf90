"""Authentication and lists of client addresses as SecurityPolicies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbctl.ir.secrets import ApiKey, Secrets
from tests.unit.targets.envoy_gateway.policies import EXISTING, Rendered, rendered

JWKS = json.dumps({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]})
SECRETS = Secrets(
    api_keys={
        "digit.yaml": (ApiKey("1a", "sk-not-real-3"), ApiKey("b", "sk-not-real-4")),
        "plain.yaml": (ApiKey("acme", "sk-not-real-1"), ApiKey("beta", "sk-not-real-2")),
        "several.yaml": (ApiKey("acme", "sk-not-real-1"), ApiKey("acme", "sk-not-real-2")),
        "hashes.yaml": (ApiKey("acme", sha256="0" * 64),),
        "users.yaml": (ApiKey("alice", "YWxpY2U6c2VjcmV0"),),
    },
    jwks={"jwks.json": JWKS, "empty.json": '{"keys": []}'},
)
KEYS = "api_keys: {file: plain.yaml}"
JWT = 'jwt: {issuer: "https://idp.example.com", jwks_file: jwks.json}'
SERVICE = 'external: {url: "http://10.0.0.9:9000/check", accept: [x-tenant], tenant_header: x-tenant}'
POLICY = "SecurityPolicy edge-web-r"


def route(settings: str, **options: Any) -> Rendered:
    """Return what is rendered for a route with these settings."""
    routes = f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: p, {settings}}}}}"
    return rendered(routes=routes, **{"secrets": SECRETS, **options})


def is_open(found: Rendered) -> bool:
    return any(rule.way.shares for rule in found.context.placed)


def test_api_keys_are_in_a_secret() -> None:
    found = route(f"auth: {{{KEYS}, forward_tenant: x-tenant}}")
    assert found.specs[POLICY]["apiKeyAuth"] == {
        "credentialRefs": [{"name": "edge-r-api-keys"}],
        "extractFrom": [{"headers": ["authorization", "x-api-key"]}],
        "forwardClientIDHeader": "x-tenant",
        "sanitize": True,
    }
    assert found.commands == [
        (
            "kubectl -n ml create secret generic edge-r-api-keys --from-env-file=FILE "
            "(FILE has a line TENANT=KEY for each tenant: acme, beta)"
        )
    ]
    assert "sk-not-real" not in json.dumps(found.specs)


def test_tenants_with_a_first_digit_have_files() -> None:
    assert route("auth: {api_keys: {file: digit.yaml}}").commands == [
        (
            "kubectl -n ml create secret generic edge-r-api-keys --from-file=1a=FILE-1 --from-file=b=FILE-2 "
            "(each file contains a key without a trailing newline)"
        )
    ]


def test_passwords_are_in_a_secret() -> None:
    found = route("auth: {basic: {file: users.yaml}, forward_tenant: x-user}")
    users = {"name": "edge-r-users"}
    assert found.specs[POLICY]["basicAuth"] == {"users": users, "forwardUsernameHeader": "x-user"}
    assert found.commands == ["kubectl -n ml create secret generic edge-r-users --from-file=.htpasswd"]


def test_tokens_are_verified_by_the_key_set() -> None:
    found = route(f"auth: {{{JWT[:-1]}, audiences: [llm], tenant_claim: sub}}, forward_tenant: x-tenant}}")
    assert found.specs[POLICY]["jwt"]["providers"] == [
        {
            "name": "jwt",
            "issuer": "https://idp.example.com",
            "audiences": ["llm"],
            "localJWKS": {"type": "Inline", "inline": JWKS},
            "extractFrom": {"headers": [{"name": "authorization", "valuePrefix": "Bearer "}]},
            "claimToHeaders": [{"claim": "sub", "header": "x-tenant"}],
        }
    ]


def test_external_service_is_a_backend() -> None:
    found = route(f"auth: {{{SERVICE}}}")
    assert found.specs["Backend edge-r-auth"]["endpoints"] == [{"ip": {"address": "10.0.0.9", "port": 9000}}]
    service = {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "edge-r-auth"}
    assert found.specs[POLICY]["extAuth"] == {
        "http": {"backendRefs": [service], "path": "/check?uri=", "headersToBackend": ["x-tenant"]},
        "headersToExtAuth": ["authorization", "cookie", "x-forwarded-for"],
        "timeout": "500ms",
        "failOpen": False,
        "statusOnError": 503,
    }
    assert "statusOnError" not in route(f"auth: {{{SERVICE}}}", version=(1, 7)).specs[POLICY]["extAuth"]


def test_backend_of_a_service_and_a_pool_differ() -> None:
    pools = 'pools: {r-auth: {replicas: [{address: "10.0.0.1:80"}]}}'
    routes = f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: r-auth, auth: {{{SERVICE}}}}}}}"
    names = [name for name in rendered(routes=routes, pools=pools).specs if name.startswith("Backend")]
    assert names
    assert "Backend edge-r-auth" not in names


def test_denied_networks_precede_allowed_ones() -> None:
    found = route("allow_from: [10.0.0.0/8], deny_from: [10.9.0.0/16]")
    assert found.specs[POLICY]["authorization"] == {
        "defaultAction": "Deny",
        "rules": [
            {"name": "deny", "action": "Deny", "principal": {"clientCIDRs": ["10.9.0.0/16"]}},
            {"name": "allow", "action": "Allow", "principal": {"clientCIDRs": ["10.0.0.0/8"]}},
        ],
    }


def test_networks_of_a_listener_apply_to_all_of_its_routes() -> None:
    listeners = 'listeners: {web: {bind: "0.0.0.0:80", deny_from: [203.0.113.0/24]}}'
    routes = "routes: {a: {match: {path: /a}, pool: p}, b: {match: {path: /b}, respond: {status: 200, body: ok}}}"
    specs = rendered(listeners, routes).specs
    policies = {name: spec for name, spec in specs.items() if name.startswith("SecurityPolicy")}
    assert set(policies) == {"SecurityPolicy edge-web-a", "SecurityPolicy edge-web-b"}
    assert {spec["authorization"]["defaultAction"] for spec in policies.values()} == {"Allow"}


def test_policy_selects_every_rule_of_its_route() -> None:
    routes = (
        "routes: {r: {match: {path_prefix: /v1, hosts: [a.example.com]}, pool: p, "
        f"pin: [{{header: x-pool, equals: q, pool: q}}], auth: {{{KEYS}}}}}, "
        "open: {match: {path_prefix: /}, pool: p}}"
    )
    pools = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}, q: {replicas: [{address: "10.0.0.2:80"}]}}'
    found = rendered(routes=routes, pools=pools, secrets=SECRETS)
    targets = [(item["name"], item["sectionName"]) for item in found.specs[POLICY]["targetRefs"]]
    assert targets == [("edge-web-host", "r.pin-1"), ("edge-web-host", "r")]
    assert [name for name in found.specs if name.startswith("SecurityPolicy")] == [POLICY]


@pytest.mark.parametrize(
    ("auth", "warning"),
    [
        (KEYS.replace("plain", "several"), "LB443 routes.r.auth.api_keys.file"),
        (KEYS.replace("plain", "hashes"), "LB443 routes.r.auth.api_keys.file"),
        (f"{KEYS}, {JWT}", "LB443 routes.r.auth"),
        (JWT.replace("jwks.json", "empty.json"), "LB444 routes.r.auth.jwt.jwks_file"),
        (JWT.replace("jwks.json", "missing.json"), "LB444 routes.r.auth.jwt.jwks_file"),
        (f"{JWT[:-1]}, audiences: [a, b, c, d, e, f, g, h, i]}}", "LB444 routes.r.auth.jwt.audiences"),
        (JWT.replace("example.com", f"example.com/{'a' * 250}"), "LB444 routes.r.auth.jwt.issuer"),
        (SERVICE.replace("10.0.0.9", "127.0.0.1"), "LB416 routes.r.auth.external.url"),
    ],
)
def test_route_without_a_possible_policy_is_closed(auth: str, warning: str) -> None:
    found = route(f"auth: {{{auth}}}")
    assert found.warnings == [warning]
    assert not is_open(found)
    assert POLICY not in found.specs


@pytest.mark.parametrize("auth", [f"{KEYS}, forward_tenant: x-tenant", SERVICE])
def test_clients_cannot_forge_a_tenant_on_an_existing_gateway(auth: str) -> None:
    assert not is_open(route(f"auth: {{{auth}}}", place=EXISTING))
    assert is_open(route(f"auth: {{{KEYS}}}", place=EXISTING))


def test_assumed_authentication_needs_no_policy() -> None:
    place = "gateway_class: eg, assume: [route.auth.api_keys]"
    found = route(f"auth: {{{KEYS.replace('plain', 'hashes')}, forward_tenant: x-tenant}}", place=place)
    assert is_open(found)
    assert POLICY not in found.specs
    early = found.specs["ClientTrafficPolicy edge-web"]["headers"]["earlyRequestHeaders"]["removeOnMatch"]
    assert not any("tenant" in item["value"] for item in early)


@pytest.mark.parametrize("place", ["gateway_class: eg", EXISTING])
def test_lists_need_the_address_of_the_client(place: str) -> None:
    client = "client_address: {trusted: [10.0.0.0/8], header: x-real-ip}"
    listeners = f'listeners: {{web: {{bind: "0.0.0.0:80", {client}}}}}'
    routes = "routes: {a: {match: {path: /a}, pool: p, deny_from: [203.0.113.0/24]}, b: {match: {path: /b}, pool: p}}"
    found = rendered(listeners, routes, place=place)
    assert "LB448 routes.a.deny_from" in found.warnings
    assert [rule.name for rule in found.context.placed if rule.way.shares] == ["b"]
    all_routes = rendered(listeners.replace(client, f"{client}, allow_from: [192.0.2.0/24]"), place=place)
    assert "LB415 listeners.web.allow_from" in all_routes.warnings
    assert not is_open(all_routes)


@pytest.mark.parametrize(
    ("auth", "warnings"),
    [
        (f"{KEYS[:-1]}, websocket_protocol: true}}", ["LB443 routes.r.auth.api_keys.websocket_protocol"]),
        (SERVICE, ["LB416 routes.r.auth.external"]),
        (f"{SERVICE}, forward_tenant: x-t", ["LB416 routes.r.auth.external", "LB416 routes.r.auth.forward_tenant"]),
    ],
)
def test_settings_of_authentication_without_a_policy(auth: str, warnings: list[str]) -> None:
    found = route(f"websocket: true, auth: {{{auth}}}")
    assert found.warnings == warnings
    assert is_open(found)

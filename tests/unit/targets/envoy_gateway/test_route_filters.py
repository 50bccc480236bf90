"""Responses by the gateway, closed routes, and keys for replicas and hosted APIs as HTTPRouteFilters."""

from __future__ import annotations

import pytest

from lbctl.ir.routes import HeaderRules, Rewrite
from lbctl.ir.secrets import HeaderSecret, Secrets
from tests.unit.targets.envoy_gateway.policies import EXISTING, OWN, Rendered, rendered

SECRETS = Secrets(headers={"key": HeaderSecret("sk-not-real-1"), "other": HeaderSecret("sk-not-real-2")})
HOSTED = (
    "{discovery: {dns: {name: api.example.com, port: 443}}, tls: {ca: system, server_name: api.example.com}, "
    "upstream: {host: api.example.com, path_prefix: /openai, headers: "
    '{authorization: {prefix: "Bearer ", file: key}, x-version: "2%"}}}'
)
CLOSED = "HTTPRouteFilter edge-closed"


def reference(name: str) -> dict[str, object]:
    filtered = {"group": "gateway.envoyproxy.io", "kind": "HTTPRouteFilter", "name": name}
    return {"type": "ExtensionRef", "extensionRef": filtered}


def hosted(routes: str, pools: str = "") -> Rendered:
    return rendered(routes=routes, pools=f"pools: {{p: {HOSTED}{pools}}}", secrets=SECRETS)


@pytest.mark.parametrize(("version", "body"), [((1, 7), "100 %"), ((1, 8), "100 %%")])
def test_response_by_the_gateway(version: tuple[int, ...], body: str) -> None:
    routes = 'routes: {r: {match: {path: /v1}, respond: {status: 418, body: "100 %"}}}'
    found = rendered(routes=routes, version=version)
    assert found.specs["HTTPRouteFilter edge-r"]["directResponse"] == {
        "statusCode": 418,
        "contentType": "text/plain; charset=utf-8",
        "body": {"type": "Inline", "inline": body},
    }
    assert found.rules == {"r": {"filters": [reference("edge-r")]}}


def test_list_of_models_differs_between_listeners() -> None:
    listeners = 'listeners: {a: {bind: "0.0.0.0:80"}, b: {bind: "0.0.0.0:81"}}'
    routes = (
        "routes: {models: {match: {path: /v1/models}, respond: {models: true}}, "
        "r: {match: {model: [llama]}, pool: p, listeners: [a]}}"
    )
    specs = rendered(listeners, routes).specs
    bodies = [specs[f"HTTPRouteFilter edge-{name}-models"]["directResponse"]["body"]["inline"] for name in "ab"]
    assert ["llama" in body for body in bodies] == [True, False]


def test_closed_routes_share_a_filter() -> None:
    auth = "auth: {api_keys: {file: keys.yaml}, jwt: {issuer: a, jwks_file: jwks.json}}"
    routes = (
        f"routes: {{a: {{match: {{path: /a}}, pool: p, {auth}}}, b: {{match: {{path: /b}}, pool: p, {auth}}}, "
        "closed: {match: {path: /c}, respond: {status: 200, body: ok}}}"
    )
    found = rendered(routes=routes)
    names = {item["extensionRef"]["name"] for key in "ab" for item in found.rules[key]["filters"]}
    (closed,) = names
    assert found.specs[f"HTTPRouteFilter {closed}"]["directResponse"]["statusCode"] == 503
    assert reference(closed) not in found.rules["closed"]["filters"]
    assert not any(rule.way.shares for rule in found.context.placed)


def test_large_response_is_closed() -> None:
    found = rendered(routes=f"routes: {{r: {{match: {{path: /a}}, respond: {{status: 200, body: {'a' * 4097}}}}}}}")
    assert found.warnings == ["LB430 routes.r.respond"]
    assert found.rules == {"r": {"filters": [reference("edge-closed")]}}
    assert CLOSED in found.specs


def test_preflight_has_the_headers_of_its_route() -> None:
    headers = 'headers: {response: {set: {access-control-allow-origin: "https://a.example.com"}}}'
    auth = 'auth: {external: {url: "http://10.0.0.9/"}}'
    found = rendered(routes=f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: p, {headers}, {auth}}}}}")
    modifier, response = found.rules["r.options"]["filters"]
    names = [item["name"] for item in modifier["responseHeaderModifier"]["set"]]
    assert names == ["access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin"]
    assert response == reference("edge-r-options")
    assert found.specs["HTTPRouteFilter edge-r-options"]["directResponse"] == {"statusCode": 204}


def test_value_with_two_spaces_is_not_set() -> None:
    headers = 'headers: {request: {set: {x-a: "a  b", x-b: "a b"}}, response: {set: {x-c: "a  b"}}}'
    found = rendered(routes=f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: p, {headers}}}}}")
    assert found.routes["r"].request_headers == HeaderRules((("x-b", "a b"),), ("x-a",))
    assert found.routes["r"].response_headers == HeaderRules((), ("x-c",))
    places = ["routes.r.headers.request.set.x-a", "routes.r.headers.response.set.x-c"]
    assert found.warnings == [f"LB445 {place}" for place in places]


def test_hosted_api_gets_its_key_host_and_path() -> None:
    found = hosted("routes: {r: {match: {path_prefix: /v1}, pool: p}}")
    assert found.specs["HTTPRouteFilter edge-p-credential"]["credentialInjection"] == {
        "overwrite": True,
        "header": "authorization",
        "credential": {"valueRef": {"name": "edge-p-credential"}},
    }
    assert found.commands == [
        "kubectl -n ml create secret generic edge-p-credential '--from-literal=credential=Bearer KEY'"
    ]
    route = found.routes["r"]
    assert route.rewrite == Rewrite(None, "api.example.com")
    path = {"type": "ReplaceRegexMatch", "replaceRegexMatch": {"pattern": "^/", "substitution": "/openai/"}}
    rewrite = {"path": path, "appendXForwardedHost": False}
    assert found.specs["HTTPRouteFilter edge-r-rewrite"]["urlRewrite"] == rewrite
    assert route.request_headers.set == (("x-version", "2%%"),)
    assert {"cookie", "x-forwarded-for", "x-api-key", "x-envoy-external-address"} <= set(route.request_headers.remove)
    assert len(route.request_headers.remove) <= 16
    assert "authorization" not in route.request_headers.remove


@pytest.mark.parametrize(
    ("match", "rewrite", "replaced", "prepended"),
    [
        ("path_prefix: /", "", None, "/openai/"),
        ("path: /v1/models", "", None, "/openai/"),
        ('path_regex: "/v[12]"', "", None, "/openai/"),
        ("path_prefix: /v1", ", rewrite: {path_prefix: /v2}", "/openai/v2", None),
        ("path_prefix: /v1", ", rewrite: {path_prefix: /}", "/openai", None),
        ("path_prefix: /", ", rewrite: {path_prefix: /v2}", None, "/openai/v2/"),
        ("path_prefix: /", ", rewrite: {path_prefix: /}", None, "/openai/"),
    ],
)
def test_prefix_of_a_hosted_api(match: str, rewrite: str, replaced: str | None, prepended: str | None) -> None:
    found = hosted(f"routes: {{r: {{match: {{{match}}}, pool: p{rewrite}}}}}")
    assert found.routes["r"].rewrite == Rewrite(replaced, "api.example.com")
    path = found.specs["HTTPRouteFilter edge-r-rewrite"]["urlRewrite"].get("path")
    assert (path["replaceRegexMatch"]["substitution"] if path else None) == prepended


@pytest.mark.parametrize(("prefix", "prepended"), [("/api", "/api/"), ("/", None)])
def test_root_is_not_replaced_but_prepended(prefix: str, prepended: str | None) -> None:
    found = rendered(
        routes=f"routes: {{r: {{match: {{path_prefix: /}}, pool: p, rewrite: {{path_prefix: {prefix}}}}}}}"
    )
    assert found.routes["r"].rewrite is None
    specs = [spec["urlRewrite"]["path"] for name, spec in found.specs.items() if name.endswith("edge-r-rewrite")]
    assert [spec["replaceRegexMatch"]["substitution"] for spec in specs] == ([prepended] if prepended else [])


def test_old_version_adds_the_host_of_the_client() -> None:
    pools = f"pools: {{p: {HOSTED.replace(', path_prefix: /openai', '')}}}"
    old = rendered(pools=pools, version=(1, 7), secrets=SECRETS)
    new = rendered(pools=pools, version=(1, 8), secrets=SECRETS)
    assert new.specs.keys() - old.specs.keys() == {"HTTPRouteFilter edge-r-rewrite"}


def test_port_of_a_hosted_api_is_lost() -> None:
    pool = HOSTED.replace("host: api.example.com", 'host: "api.example.com:8443"')
    found = rendered(pools=f"pools: {{p: {pool}}}", secrets=SECRETS)
    assert found.warnings == ["LB159 pools.p.upstream.host"]


KEYS = ", ".join(f"x-key-{index}" for index in range(8))


@pytest.mark.parametrize(
    ("place", "auth"),
    [
        (EXISTING, ""),
        (OWN, f", auth: {{api_keys: {{file: keys.yaml, headers: [{KEYS}]}}, forward_tenant: x-tenant}}"),
    ],
)
def test_api_to_which_headers_would_leak_is_closed(place: str, auth: str) -> None:
    found = rendered(
        routes=f"routes: {{r: {{pool: p{auth}}}}}", pools=f"pools: {{p: {HOSTED}}}", place=place, secrets=SECRETS
    )
    assert "LB159 routes.r" in found.warnings
    assert not any(rule.way.shares for rule in found.context.placed)


@pytest.mark.parametrize(
    "routes",
    [
        "routes: {r: {split: {p: 1, q: 1}}}",
        "routes: {r: {pool: q, pin: [{header: x-pool, equals: p, pool: p}]}}",
        "routes: {r: {pool: p, mirror: {pool: q}}}",
        "routes: {r: {pool: q, mirror: {pool: p}}}",
    ],
)
def test_key_of_a_hosted_api_reaches_no_other_pool(routes: str) -> None:
    found = hosted(routes, ', q: {replicas: [{address: "10.0.0.1:80"}]}')
    assert found.warnings[0].startswith("LB159 routes.r")
    assert not any(rule.way.shares for rule in found.context.placed)
    assert not found.commands


def test_hosted_api_with_two_keys_is_closed() -> None:
    pool = HOSTED.replace('x-version: "2%"', "x-other: {file: other}")
    found = rendered(pools=f"pools: {{p: {pool}}}", secrets=SECRETS)
    assert found.warnings == ["LB159 pools.p.upstream.headers"]
    assert not any(rule.way.shares for rule in found.context.placed)


def test_key_of_replicas_is_sent_by_routes_to_one_pool() -> None:
    keyed = '{replicas: [{address: "10.0.0.1:80"}], credentials: {header: authorization, file: key}}'
    pools = f'pools: {{p: {keyed}, q: {{replicas: [{{address: "10.0.0.2:80"}}]}}}}'
    routes = "routes: {a: {match: {path: /a}, pool: p}, b: {match: {path: /b}, split: {p: 1, q: 1}}}"
    found = rendered(routes=routes, pools=pools, secrets=SECRETS)
    assert found.specs["HTTPRouteFilter edge-p-credential"]["credentialInjection"]["header"] == "authorization"
    assert found.warnings == ["LB156 pools.p.credentials"]


def test_replicas_get_no_credentials_of_clients() -> None:
    auth = "auth: {basic: {file: users.yaml}FORWARD}"
    routes = f"routes: {{r: {{match: {{path_prefix: /v1}}, pool: p, {auth}}}}}"
    removed = rendered(routes=routes.replace("FORWARD", "")).routes["r"].request_headers.remove
    assert removed == ("authorization",)
    kept = rendered(routes=routes.replace("FORWARD", ", forward_credentials: true"))
    assert not kept.routes["r"].request_headers.remove

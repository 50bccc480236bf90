"""Imports of access control and of settings around it: users, services, addresses, metrics, logs, hosted APIs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.importer import envoy_text, fleet_from_text, imported_text

NGINX = (
    "upstream up {{ server 10.0.0.1:80; }}\n"
    "server {{ listen 80; {0} location / {{ {1} proxy_pass http://up; proxy_set_header Host $host; }} {2} }}"
)
HAPROXY = (
    "userlist u\n user a password x\ndefaults\n mode http\nfrontend f\n bind :80\n {0}\n default_backend b\n"
    "backend b\n server s 10.0.0.1:80\n"
)
TYPE = '"@type": type.googleapis.com/envoy.extensions.filters.http'
BASIC = f'- {{name: basic, typed_config: {{{TYPE}.basic_auth.v3.BasicAuth, users: {{inline_string: "a:{{SHA}}x"}}}}}}'
AUTHZ = (
    f"- {{name: authz, typed_config: {{{TYPE}.ext_authz.v3.ExtAuthz, http_service: {{server_uri: "
    '{uri: "http://auth", cluster: auth, timeout: 0.25s}, path_prefix: /check, authorization_response: '
    "{allowed_upstream_headers: {patterns: [{exact: X-User}]}}}}}"
)
RBAC = (
    f"- {{name: rbac, typed_config: {{{TYPE}.rbac.v3.RBAC, rules: {{action: ACTION, policies: {{p: {{permissions: "
    "[{any: true}], principals: [{remote_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}]}}}}}"
)
LUA = f'- {{name: lua, typed_config: {{{TYPE}.lua.v3.Lua, default_source_code: {{inline_string: "httpCall(1)"}}}}}}'
OFF = "authz: {" + f"{TYPE}.ext_authz.v3.ExtAuthzPerRoute, disabled: true}}"
CHECK = (
    "location = /check { internal; proxy_pass http://localhost:9191/verify; proxy_read_timeout 250ms; "
    'proxy_pass_request_body off; proxy_set_header Content-Length ""; }'
)


@pytest.mark.parametrize(
    ("kind", "text", "realm"),
    [
        (
            "nginx",
            NGINX.format('auth_basic "Models"; auth_basic_user_file /etc/htpasswd;', "", ""),
            {"realm": "Models"},
        ),
        ("haproxy", HAPROXY.format("http-request auth realm Models unless { http_auth(u) }"), {"realm": "Models"}),
        ("envoy", envoy_text(filters=BASIC), {}),
    ],
)
def test_users_with_passwords_become_an_empty_file(kind: str, text: str, realm: dict[str, str], tmp_path: Path) -> None:
    result, diagnostics = imported_text(kind, text, tmp_path)
    for route in result.draft.fleet["routes"].values():
        assert route["auth"] == {"basic": {"file": "secrets/users.yaml", **realm}}
    assert "LB984" in {item.code for item in diagnostics}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format(
            "", "auth_request /check; auth_request_set $u $upstream_http_x_user; proxy_set_header X-User $u;", CHECK)),
        ("envoy", envoy_text(filters=AUTHZ)),
    ],
)  # fmt: skip
def test_authorization_service_is_kept(kind: str, text: str, tmp_path: Path) -> None:
    for route in fleet_from_text(kind, text, tmp_path)["routes"].values():
        external = route["auth"]["external"]
        path = "/verify" if kind == "nginx" else "/check"
        assert external["url"] == f"http://127.0.0.1:9191{path}"
        assert (external["timeout"], external["accept"]) == ("250ms", ["x-user"])
        assert {"authorization", "cookie"} <= set(external["send"])


def test_authorization_service_with_a_host_name_closes_the_route(tmp_path: Path) -> None:
    text = NGINX.format("", "auth_request /check;", CHECK.replace("localhost", "auth.internal"))
    (route,) = fleet_from_text("nginx", text, tmp_path)["routes"].values()
    assert route["respond"]["status"] == 501
    assert "IP address" in route["respond"]["body"]


def test_route_that_disables_a_filter_stays_open(tmp_path: Path) -> None:
    routes = fleet_from_text("envoy", envoy_text(filters=AUTHZ, open_=OFF), tmp_path)["routes"]
    assert [("auth" in item, item["pool"]) for item in routes.values()] == [(False, "c"), (True, "c")]


def test_unsupported_filter_of_a_route_closes_it(tmp_path: Path) -> None:
    own = f"authz: {{{TYPE}.ext_authz.v3.ExtAuthzPerRoute, check_settings: {{context_extensions: {{a: b}}}}}}"
    routes = fleet_from_text("envoy", envoy_text(filters=AUTHZ, open_=own), tmp_path)["routes"]
    assert [item.get("respond", {}).get("status") for item in routes.values()] == [501, None]


def test_direct_responses_stay_protected(tmp_path: Path) -> None:
    answering = envoy_text(filters=AUTHZ).replace(
        "route: {cluster: c}", "direct_response: {status: 200, body: {inline_string: for some}}", 1
    )
    routes = list(fleet_from_text("envoy", answering, tmp_path)["routes"].values())
    assert routes[0]["respond"]["status"] == 501
    rules = "http-request auth unless { http_auth(u) }\n http-request return status 200 string some if { path /a }"
    routes = list(fleet_from_text("haproxy", HAPROXY.format(rules), tmp_path)["routes"].values())
    assert [item.get("respond", {}).get("status") for item in routes if item["match"] == {"path": "/a"}] == [501]
    before = "http-request return status 200 string some if { path /a }\n http-request auth unless { http_auth(u) }"
    routes = list(fleet_from_text("haproxy", HAPROXY.format(before), tmp_path)["routes"].values())
    assert [item["respond"]["status"] for item in routes if item["match"] == {"path": "/a"}] == [200]


def test_route_that_enables_a_disabled_filter_is_closed(tmp_path: Path) -> None:
    off = AUTHZ.replace("{name: authz,", "{name: authz, disabled: true,")
    enabled = "authz: {" + f"{TYPE}.ext_authz.v3.ExtAuthzPerRoute, check_settings: {{}}}}"
    routes = fleet_from_text("envoy", envoy_text(filters=off, open_=enabled), tmp_path)["routes"]
    assert [item.get("respond", {}).get("status") for item in routes.values()] == [501, None]


def test_token_requirement_of_a_route_closes_it(tmp_path: Path) -> None:
    tokens = f"- {{name: jwt, typed_config: {{{TYPE}.jwt_authn.v3.JwtAuthentication, requirement_map: {{a: {{}}}}}}}}"
    own = f"jwt: {{{TYPE}.jwt_authn.v3.PerRouteConfig, requirement_name: a}}"
    routes = fleet_from_text("envoy", envoy_text(filters=tokens, open_=own), tmp_path)["routes"]
    assert [item["respond"]["status"] for item in routes.values()] == [501, 501]
    result = fleet_from_text("envoy", envoy_text(filters=tokens), tmp_path)
    assert "http_filters" in result["proxies"]["envoy"]["include"]


def test_filter_that_may_reject_closes_the_routes(tmp_path: Path) -> None:
    name_of_a_user = RBAC.replace("{remote_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}", "{any: true}")
    for filters in (LUA, name_of_a_user.replace("ACTION", "ALLOW")):
        routes = fleet_from_text("envoy", envoy_text(filters=filters), tmp_path)["routes"].values()
        assert [item["respond"]["status"] for item in routes] == [501, 501]


@pytest.mark.parametrize(("action", "key"), [("ALLOW", "allow_from"), ("DENY", "deny_from")])
def test_address_lists_of_envoy_belong_to_the_listener(action: str, key: str, tmp_path: Path) -> None:
    result = fleet_from_text("envoy", envoy_text(filters=RBAC.replace("ACTION", action)), tmp_path)
    assert result["listeners"]["l"][key] == ["10.0.0.0/8"]
    assert [item["pool"] for item in result["routes"].values()] == ["c", "c"]


@pytest.mark.parametrize(
    ("rule", "key", "value"),
    [
        ("http-request auth if { path_beg /a/ } !{ http_auth(u) }", "auth", {"basic": {"file": "secrets/users.yaml"}}),
        ("http-request deny if { path_beg /a/ } !{ src 10.0.0.0/8 }", "allow_from", ["10.0.0.0/8"]),
        ("http-request deny if { path_beg /a/ } { src 10.6.6.6 }", "deny_from", ["10.6.6.6/32"]),
        ("http-request set-log-level silent if { path_beg /a/ }", "access_log", "off"),
        ("http-request deny if { path_beg /a/ } !{ req.hdr(x-api-key) -m str k }", "auth",
         {"api_keys": {"file": "secrets/api-keys.yaml", "header": "x-api-key"}}),
    ],
)  # fmt: skip
def test_rule_for_some_paths_becomes_a_separate_route(rule: str, key: str, value: object, tmp_path: Path) -> None:
    own, rest = fleet_from_text("haproxy", HAPROXY.format(rule), tmp_path)["routes"].values()
    assert (own["match"], own["pool"], own[key]) == ({"path_prefix": "/a/"}, "b", value)
    assert (rest["match"], rest["pool"], rest.get(key)) == ({}, "b", None)


NETWORK = (
    '- name: rbac\n        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, '
    "stat_prefix: x, rules: {action: DENY, policies: {}}}\n      - name: hcm"
)


PATH = "config_source: {path_config_source: {path: /etc/envoy/x.yaml}}"
TYPES = 'type_urls: ["type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz"]'
SOURCE = f"{{{PATH}, {TYPES}}}"
VHDS = f"{{{PATH}}}"
DISCOVERED_CONNECTIONS = f"- name: check\n        config_discovery: {SOURCE}\n      - name: hcm"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("access_by_lua_file /etc/check.lua;", "", "")),
        ("nginx", NGINX.format("", "auth_ldap Restricted;", "")),
        ("haproxy", HAPROXY.format("tcp-request content reject if { ssl_c_verify 1 }")),
        ("haproxy", HAPROXY.format("http-request lua.check")),
        ("haproxy", HAPROXY.format("tcp-request content lua.check")),
        ("haproxy", HAPROXY.format("http-request use-service lua.answer")),
        ("envoy", envoy_text().replace("- name: hcm", NETWORK)),
        ("envoy", envoy_text().replace("- name: hcm", DISCOVERED_CONNECTIONS)),
        ("envoy", envoy_text(filters="- {name: envoy.filters.http.cors, typed_config: {'@type': t/own.Check}}")),
        ("envoy", envoy_text(filters=f"- {{name: check, config_discovery: {SOURCE}}}")),
        ("envoy", envoy_text(filters=f"- {{name: envoy.filters.http.cors, config_discovery: {SOURCE}}}")),
        ("envoy", envoy_text().replace("virtual_hosts:", f"vhds: {VHDS}\n            virtual_hosts:")),
    ],
)
def test_unsupported_protection_closes_the_routes(kind: str, text: str, tmp_path: Path) -> None:
    routes = fleet_from_text(kind, text, tmp_path)["routes"].values()
    assert {item["respond"]["status"] for item in routes} == {501}


def test_filters_that_decide_nothing_about_access_stay_open(tmp_path: Path) -> None:
    found = f"{{{PATH}, type_urls: [type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors]}}"
    for each in (f"typed_config: {{{TYPE}.cors.v3.Cors}}", f"config_discovery: {found}"):
        routes = fleet_from_text("envoy", envoy_text(filters=f"- {{name: x, {each}}}"), tmp_path)["routes"]
        assert [item.get("pool") for item in routes.values()] == ["c", "c"]


RANGES = "{source_prefix_ranges: [{address_prefix: 10.0.0.0, prefix_len: 8}]}"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("haproxy", HAPROXY.format("tcp-request connection reject unless { src 10.0.0.0/8 }")),
        ("envoy", envoy_text().replace("    - filters:", f"    - filter_chain_match: {RANGES}\n      filters:")),
    ],
)  # fmt: skip
def test_rejected_connections_become_address_lists(kind: str, text: str, tmp_path: Path) -> None:
    result = fleet_from_text(kind, text, tmp_path)
    (listener,), routes = result["listeners"].values(), result["routes"].values()
    assert {tuple(item.get("allow_from", listener.get("allow_from"))) for item in routes} == {("10.0.0.0/8",)}


def test_expression_that_overlaps_protected_paths_is_protected(tmp_path: Path) -> None:
    rules = "http-request auth if { path_beg /a/ } !{ http_auth(u) }\n use_backend b if { path_reg ^/.*x$ }"
    routes = list(fleet_from_text("haproxy", HAPROXY.format(rules), tmp_path)["routes"].values())
    assert [("auth" in item, item["match"]) for item in routes] == [
        (True, {"path_regex": "/.*x"}), (True, {"path_prefix": "/a/"}), (False, {})
    ]  # fmt: skip


STATUS = "server { listen 8099; location /stub_status { stub_status; allow 127.0.0.1; deny all; } }"
EXPORTER = "frontend m\n bind :8405\n http-request use-service prometheus-exporter if { path /metrics }\n"


@pytest.mark.parametrize(
    ("kind", "text", "metrics"),
    [
        ("nginx", NGINX.format("", "", "") + STATUS, "127.0.0.1:8099"),
        ("nginx", NGINX.format("", "", "location = /status { stub_status; }"), "127.0.0.1:9113"),
        ("haproxy", HAPROXY.format("") + EXPORTER, "127.0.0.1:8405"),
        ("haproxy", HAPROXY.format("http-request use-service prometheus-exporter if { path /status }"),
         "127.0.0.1:8405"),
    ],
)  # fmt: skip
def test_metrics_of_the_proxy_move_to_loopback(kind: str, text: str, metrics: str, tmp_path: Path) -> None:
    result = fleet_from_text(kind, text, tmp_path)
    assert result["proxies"][kind]["metrics"] == metrics
    assert len(result["listeners"]) == 1
    answers = [item["respond"] for item in result["routes"].values() if item["match"] == {"path": "/status"}]
    assert all(item["status"] == 404 for item in answers)


def test_process_settings_of_haproxy_are_imported(tmp_path: Path) -> None:
    text = "global\n user haproxy\n group haproxy\n chroot /var/lib/haproxy\n stats socket /run/h.sock mode 600\n"
    proxy = fleet_from_text("haproxy", text + HAPROXY.format(""), tmp_path)["proxies"]["haproxy"]
    assert proxy == {
        "kind": "haproxy", "user": "haproxy", "group": "haproxy", "chroot": "/var/lib/haproxy",
        "runtime_api": "/run/h.sock",
    }  # fmt: skip


FALLBACK = (
    "error_page 502 503 = @api; location @api { proxy_pass https://api.example.com; "
    "rewrite ^/v1/(.*)$ /openai/v1/$1 break; "
    'proxy_set_header Host api.example.com; proxy_set_header api-version "2024"; '
    'proxy_set_header Authorization "Bearer ${API_KEY}"; }'
)


def test_error_page_with_a_provider_becomes_a_fallback(tmp_path: Path) -> None:
    result = fleet_from_text("nginx", NGINX.format("", "", FALLBACK), tmp_path)
    (route,) = result["routes"].values()
    pool = result["pools"][route["fallback"]]
    secret = {"prefix": "Bearer ", "file": f"secrets/{route['fallback']}-key"}
    assert pool["upstream"] == {
        "host": "api.example.com", "path_prefix": "/openai", "headers": {"api-version": "2024", "authorization": secret}
    }  # fmt: skip
    assert pool["tls"]["ca"] == "system"


@pytest.mark.parametrize("value", ["$http_authorization", "$auth"])
def test_key_of_the_client_is_not_a_provider_key(value: str, tmp_path: Path) -> None:
    setting = f"set $auth $http_authorization; proxy_set_header Authorization {value};"
    assert "upstream" not in fleet_from_text("nginx", NGINX.format("", setting, ""), tmp_path)["pools"]["up"]


def test_two_keys_for_one_provider_are_two_pools(tmp_path: Path) -> None:
    locations = "".join(
        f"location /{name}/ {{ proxy_pass https://api.example.com; proxy_set_header X-Api-Key sk-{name}{name}{name}; }}"
        for name in ("aaa", "bbb")
    )
    result = fleet_from_text("nginx", NGINX.format("", "", locations), tmp_path)
    pools = [result["routes"][name]["pool"] for name in ("aaa", "bbb")]
    files = [result["pools"][pool]["upstream"]["headers"]["x-api-key"]["file"] for pool in pools]
    assert len({*pools, "up"}) == 3
    assert len(set(files)) == 2


HOSTED = (
    "backend hosted\n http-request set-header Host api.example.com\n"
    ' http-request set-header Authorization "Bearer sk-abcdefgh"\n http-request {}\n server s api.example.com:443 ssl\n'
)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("set-path /openai%[path]", "/openai"),
        (r"replace-path (.*) /openai/v2\1", "/openai/v2"),
        ("set-path /openai%[path] if { path_beg /a }", None),
        ("set-path /openai", None),
    ],
)
def test_path_prefix_of_a_provider_belongs_to_the_pool(rule: str, expected: str | None, tmp_path: Path) -> None:
    text = HAPROXY.format("use_backend hosted if { hdr(x-provider) hosted }") + HOSTED.format(rule)
    result = fleet_from_text("haproxy", text, tmp_path)
    assert result["pools"]["hosted"]["upstream"].get("path_prefix") == expected
    closed = [item["match"] for item in result["routes"].values() if "respond" in item]
    assert closed == ([] if expected or "if" in rule else [{"headers": {"x-provider": "hosted"}}])


def test_different_path_of_an_authorization_service_is_reported(tmp_path: Path) -> None:
    filters = AUTHZ.replace("http_service:", "failure_mode_allow: false, http_service:", 1)
    result, diagnostics = imported_text("envoy", envoy_text(filters=filters), tmp_path)
    message = (
        "Envoy queries the service at /checkPATH (PATH is the request's path); "
        "lbctl always queries http://127.0.0.1:9191/check"
    )
    assert message in [item.message for item in diagnostics if item.code == "LB985"]
    assert "failure_mode_allow" not in result.text


def test_server_without_the_common_limit_is_a_comment(tmp_path: Path) -> None:
    text = HAPROXY.format("") + " server t 10.0.0.2:80 maxconn 64\n server spare 10.0.0.3:80 backup\n"
    notes = imported_text("haproxy", text, tmp_path)[0].draft.ledger.notes
    assert [item.text for item in notes if "64 applies" in item.reason] == [
        "server s without maxconn", "server spare without maxconn"
    ]  # fmt: skip

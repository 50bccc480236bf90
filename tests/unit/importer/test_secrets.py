"""Secrets of a source are in no fleet, comment or message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.importer import envoy_text, imported_text

NGINX = "server {{ listen 80; location / {{ {0} proxy_pass http://10.0.0.1:80; }} }}"
HAPROXY = (
    "defaults\n mode http\nuserlist u\n user a password $6$abc$s3cr3tvalue\n user b insecure-password s3cr3tvalue\n"
    "frontend f\n bind :80\n http-request set-header X-Auth-Token s3cr3tvalue\n default_backend b\n"
    "backend b\n server s 10.0.0.1:80\n"
)

NAMING = (
    "defaults\n mode http\nfrontend f\n bind :80\n capture request header Authorization len 64\n"
    " http-request del-header Authorization if { path /a }\n default_backend b\nbackend b\n"
    " balance hdr(X-Api-Key)\n cookie session_token insert\n server s 10.0.0.1:80 cookie s\n"
)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("proxy_set_header X-Auth-Token s3cr3tvalue;")),
        ("nginx", NGINX.format('proxy_set_header Authorization "Basic s3cr3tvalue";')),
        ("nginx", "map $http_x_team_token $ok { default 0; s3cr3tvalue 1; }" + NGINX.format("")),
        ("nginx", NGINX.format('set $api_key "s3cr3tvalue";')),
        ("nginx", NGINX.format("proxy_set_header X-Auth s3cr3tvalue;")),
        ("nginx", NGINX.format('proxy_set_header Cookie "session=s3cr3tvalue";')),
        ("haproxy", HAPROXY),
        ("haproxy", HAPROXY.replace("X-Auth-Token", "X-Functions-Auth")),
    ],
)
def test_secret_is_neither_in_the_fleet_nor_in_a_message(kind: str, text: str, tmp_path: Path) -> None:
    result, diagnostics = imported_text(kind, text, tmp_path)
    assert "s3cr3tvalue" not in "\n".join([result.text, *result.own.values(), *map(str, diagnostics)])


CONDITIONS = (
    "defaults\n mode http\nfrontend f\n bind :80\n acl has_key var(txn.hash) -m found\n"
    " acl valid_token req.hdr(x-team) -m found\n http-request set-var(txn.hash) req.hdr(authorization),sha2(256)\n"
    " http-request deny if has_key or !valid_token internal\n http-request deny unless valid_token || has_key\n"
    " default_backend b\nbackend b\n server s 10.0.0.1:80\n"
)


@pytest.mark.parametrize(
    "test", ["var(txn.api_key) -m str {}", "hdr(x-token) -m str {}", "url_param(token) {}", "var(txn.token) {}"]
)
def test_secret_in_a_condition_is_not_shown(test: str, tmp_path: Path) -> None:
    secret = test.format("s3cr3tvalue")
    rules = f"acl has_key {secret}\n http-request deny if has_key or {{ {secret} }}\n default_b"
    result, diagnostics = imported_text("haproxy", CONDITIONS.replace("default_b", rules), tmp_path)
    shown = "\n".join([result.text, *map(str, diagnostics)])
    assert "s3cr3t" not in shown
    assert "http-request deny if has_key or" in shown


@pytest.mark.parametrize(
    "pattern", ["^[a-z]{4}sk-live-4242424242", '"^a } sk-live-4242424242"', "^a}|^sk-live-4242424242"]
)
def test_brace_within_a_pattern_does_not_end_a_test(pattern: str, tmp_path: Path) -> None:
    rule = f" http-request deny unless {{ req.hdr(x-env) -m reg {pattern} }} or valid_token\n default_b"
    result, diagnostics = imported_text("haproxy", CONDITIONS.replace(" default_b", rule), tmp_path)
    shown = "\n".join([result.text, *result.own.values(), *map(str, diagnostics)])
    assert "4242424242" not in shown
    assert all(text in shown for text in ("(a secret)", "or valid_token"))
    assert [item.position.line for item in diagnostics if item.code == "LB984"] == [10]


def test_short_secret_does_not_hide_parts_of_other_words(tmp_path: Path) -> None:
    line = " http-request set-header x-token s if { path_beg /status }\n default_b"
    text = imported_text("haproxy", CONDITIONS.replace(" default_b", line), tmp_path)[0].text
    assert "http-request set-header x-token (a secret) if { path_beg /status }" in text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("haproxy", CONDITIONS),
        ("nginx", NGINX.format("proxy_set_header X-Token $http_x_token; proxy_hide_header X-Auth-Token;")),
        ("nginx", NGINX.format("if ($known_key = 0) { return 403; } proxy_pass_header Authorization;")),
        ("nginx", NGINX.format("proxy_ssl_certificate_key /etc/k.pem; proxy_cache_key k;")),
        ("haproxy", NAMING),
        ("envoy", envoy_text(route="request_headers_to_remove: [x-api-key]")),
    ],
)  # fmt: skip
def test_directive_that_only_names_a_secret_is_kept(kind: str, text: str, tmp_path: Path) -> None:
    result, diagnostics = imported_text(kind, text, tmp_path)
    assert [str(item) for item in diagnostics if item.code == "LB984"] == []
    assert "(a secret)" not in result.text

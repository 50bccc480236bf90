"""Imports of headers with variables, and of the client's address in a header, for all three kinds of proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from tests.support.importer import envoy_text, fleet_from_text, imported, imported_text

NGINX = "server {{ listen 80; {0} location / {{ {1} proxy_pass http://10.0.0.1:80; }} }}"
HAPROXY = "defaults\n mode http\nfrontend f\n bind :80\n {0}\n default_backend b\nbackend b\n server s 10.0.0.1:80\n"


def envoy(name: str, value: str) -> str:
    return envoy_text(route=f'request_headers_to_add: [{{header: {{key: {name}, value: "{value}"}}}}]')


def route_and_listener(kind: str, text: str, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any], Diagnostics]:
    """Return the last route and the only listener of a configuration, and the diagnostics of the import."""
    result, diagnostics = imported_text(kind, text, tmp_path)
    (listener,), (*_, route) = (result.draft.fleet[key].values() for key in ("listeners", "routes"))
    return route, listener, diagnostics


@pytest.mark.parametrize(
    ("kind", "text", "headers"),
    [
        ("nginx", NGINX.format("", "proxy_set_header X-Client-IP $remote_addr;"), {"x-client-ip": "{client_ip}"}),
        ("nginx", NGINX.format("", "proxy_set_header X-Trace a-${request_id}-b;"), {"x-trace": "a-{request_id}-b"}),
        ("nginx", NGINX.format("", 'proxy_set_header X-From "$scheme://$host:$server_port";'),
         {"x-from": "http://{host}:80"}),
        ("haproxy", HAPROXY.format("http-request set-header X-Client-IP %[src]"), {"x-client-ip": "{client_ip}"}),
        ("haproxy", HAPROXY.format("http-request set-header X-Id %[unique-id]"), {"x-id": "{request_id}"}),
        ("haproxy", HAPROXY.format("http-request set-header X-For %[req.hdr(host)]%%"), {"x-for": "{host}%"}),
        ("haproxy", HAPROXY.format("option forwardfor header X-Client-IP"), {"x-client-ip": "{client_ip}"}),
        ("envoy", envoy(name="x-client-ip", value="%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"),
         {"x-client-ip": "{client_ip}"}),
        ("envoy", envoy(name="x-for", value="%REQ(:AUTHORITY)%"), {"x-for": "{host}"}),
    ],
)  # fmt: skip
def test_variable_becomes_its_placeholder(kind: str, text: str, headers: dict[str, str], tmp_path: Path) -> None:
    assert route_and_listener(kind, text, tmp_path)[0]["headers"]["request"] == {"set": headers}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("", "proxy_set_header X-A $connection_requests;")),
        ("nginx", NGINX.format("", 'proxy_set_header X-A "{tenant}";')),
        ("haproxy", HAPROXY.format('http-request set-header X-A "%[rand] sk-abcdefgh"')),
        ("envoy", envoy(name="x-a", value="%PROTOCOL%")),
    ],
)
def test_unsupported_variable_is_a_comment(kind: str, text: str, tmp_path: Path) -> None:
    result, _ = imported_text(kind, text, tmp_path)
    *_, route = result.draft.fleet["routes"].values()
    assert "headers" not in route
    assert "lbctl does not support" in result.text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("set_real_ip_from 10.1.0.0/16;", "proxy_set_header X-Client-IP $remote_addr;")),
        (
            "haproxy",
            HAPROXY.format("option forwardfor except 10.1.0.0/16\n http-request set-header X-Client-IP %[src]"),
        ),
    ],
)
def test_listener_with_trusted_peers_forwards_the_address(kind: str, text: str, tmp_path: Path) -> None:
    _, listener, _ = route_and_listener(kind, text, tmp_path)
    assert listener["client_address"] == {"trusted": ["10.1.0.0/16"], "forward": ["x-real-ip", "x-client-ip"]}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("", "proxy_set_header X-Real-IP $http_cf_connecting_ip;")),
        ("haproxy", HAPROXY.format("http-request set-header X-Real-IP %[req.hdr(CF-Connecting-IP)]")),
        ("haproxy", HAPROXY.format("http-request set-src hdr(CF-Connecting-IP)")),
        ("envoy", envoy(name="x-real-ip", value="%REQ(CF-CONNECTING-IP)%")),
    ],
)
def test_address_in_a_header_is_trusted_only_from_near_peers(kind: str, text: str, tmp_path: Path) -> None:
    _, listener, diagnostics = route_and_listener(kind, text, tmp_path)
    address = listener["client_address"]
    assert address["header"] == "cf-connecting-ip"
    assert "0.0.0.0/0" not in address["trusted"]
    assert any("can send cf-connecting-ip" in item.message for item in diagnostics if item.code == "LB985")


DENIED = "http-request deny if { src 10.6.6.0/24 }"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("deny 10.6.6.0/24;", "proxy_set_header X-Real-IP $http_cf_connecting_ip;")),
        ("haproxy", HAPROXY.format(f"option forwardfor except 10.0.0.0/8\n {DENIED}")),
    ],
)
def test_address_in_a_header_does_not_bypass_lists(kind: str, text: str, tmp_path: Path) -> None:
    route, listener, _ = route_and_listener(kind, text, tmp_path)
    assert "client_address" not in listener
    assert route["deny_from"] == ["10.6.6.0/24"]
    assert "would let clients bypass" in imported(kind, tmp_path / "source.conf")[0].text.replace("\n    #     ", " ")


def test_source_address_of_haproxy_applies_to_lists(tmp_path: Path) -> None:
    named = "option forwardfor except 10.0.0.0/8\n http-request set-src hdr(X-Forwarded-For)"
    route, listener, _ = route_and_listener("haproxy", HAPROXY.format(f"{named}\n {DENIED}"), tmp_path)
    assert listener["client_address"] == {"trusted": ["10.0.0.0/8"], "header": "x-forwarded-for"}
    assert route["deny_from"] == ["10.6.6.0/24"]


NGINX_REDIRECT = "server {{ listen 80; location = /a {{ return {0}; }} location / {{ proxy_pass http://10.0.0.1; }} }}"
HAPROXY_REDIRECT = (
    "defaults\n mode http\nfrontend f\n bind :80\n http-request redirect {0} if {{ path /a }}\n default_backend b\n"
    "backend b\n server s 10.0.0.1:80\n"
)


def envoy_redirect(redirect: str) -> str:
    return envoy_text().replace(
        "match: {path: /open}\n                route: {cluster: c}",
        f"""match: {{path: /a}}
                redirect: {{{redirect}}}""",
    )


@pytest.mark.parametrize(
    ("kind", "text", "status", "location"),
    [
        ("nginx", NGINX_REDIRECT.format("301 /a/"), 301, "/a/"),
        ("nginx", NGINX_REDIRECT.format("307 https://$host/b?c=1"), 307, "https://{host}/b?c=1"),
        ("nginx", NGINX_REDIRECT.format("/b"), 302, "/b"),
        ("nginx", NGINX_REDIRECT.format("301 /b$is_args$args"), 501, None),
        ("nginx", NGINX_REDIRECT.format("301 https://example.com/?access_token=s3cr3tvalue"), 501, None),
        ("haproxy", HAPROXY_REDIRECT.format("location /b"), 302, "/b"),
        ("haproxy", HAPROXY_REDIRECT.format("code 308 location https://x.example/b"), 308, "https://x.example/b"),
        ("haproxy", HAPROXY_REDIRECT.format("location https://%[hdr(host)]/b"), 302, "https://{host}/b"),
        ("haproxy", HAPROXY_REDIRECT.format("location /b%[query]"), 501, None),
        ("haproxy", HAPROXY_REDIRECT.format("prefix https://x.example"), 501, None),
        ("haproxy", HAPROXY_REDIRECT.format("location /b set-cookie a=1"), 501, None),
        ("envoy", envoy_redirect("path_redirect: /b"), 301, "/b"),
        ("envoy", envoy_redirect("path_redirect: /b, response_code: SEE_OTHER, strip_query: true"), 303, "/b"),
        ("envoy", envoy_redirect("path_redirect: /b, host_redirect: x.example"), 501, None),
    ],
)
def test_redirect_to_one_address_is_imported(
    kind: str, text: str, status: int, location: str | None, tmp_path: Path
) -> None:
    result = imported_text(kind, text, tmp_path)[0]
    (route,) = (item for item in result.draft.fleet["routes"].values() if item["match"] == {"path": "/a"})
    assert route["respond"]["status"] == status
    assert route.get("headers", {}).get("response", {}).get("set", {}).get("location") == location
    assert "s3cr3t" not in result.text
    lost = [note for note in result.draft.ledger.notes if note.reason == "lbctl's redirect drops the query"]
    assert len(lost) == (kind == "envoy" and status == 301)


def test_headers_of_direct_responses_of_nginx_are_set(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(
        "server {\nlisten 80;\nadd_header X-A 1 always;\nadd_header X-B 2;\n"
        "location / { proxy_pass http://10.0.0.1:80; }\nlocation /ok { return 200 ok; }\n"
        "location /no { return 404; }\n}"
    )
    draft = imported("nginx", file)[0].draft
    sent = {name: route["headers"]["response"]["set"] for name, route in draft.fleet["routes"].items()}
    assert sent == {"default": {"x-a": "1", "x-b": "2"}, "ok": {"x-a": "1", "x-b": "2"}, "no": {"x-a": "1"}}
    notes = {(note.text, note.place) for note in draft.ledger.notes if "the proxy's own responses" in note.reason}
    assert notes == {("add_header X-A 1 always", ("listeners", "http"))}


def test_limits_of_headers_are_carried_over(tmp_path: Path) -> None:
    nginx = "events {}\nhttp { large_client_header_buffers 4 16k; server { listen 80; location / { return 200; } } }\n"
    limits = "tune.bufsize 32768\n tune.http.maxhdr 200\n"
    haproxy = f"global\n {limits}defaults\n mode http\nfrontend f\n bind :80\n http-request return status 200\n"
    options = "max_request_headers_kb: 96\n          common_http_protocol_options: {max_headers_count: 200}\n"
    envoy = envoy_text().replace("stat_prefix: x\n", f"stat_prefix: x\n          {options}")
    found = {
        kind: next(iter(fleet_from_text(kind, text, tmp_path)["listeners"].values()))["headers"]
        for kind, text in (("nginx", nginx), ("haproxy", haproxy), ("envoy", envoy))
    }
    assert found == {
        "nginx": {"max_bytes": "64KiB"},
        "haproxy": {"max_count": 200, "max_bytes": "31KiB"},
        "envoy": {"max_bytes": "96KiB", "max_count": 200},
    }


def test_buffer_for_long_bodies_does_not_limit_headers(tmp_path: Path) -> None:
    text = (
        "global\n tune.bufsize 4194304\ndefaults\n mode http\nfrontend f\n bind :80\n http-request return status 200\n"
    )
    result, diagnostics = imported_text("haproxy", text, tmp_path)
    assert "headers" not in result.draft.fleet["listeners"]["f"]
    assert not [item for item in diagnostics if "bufsize" in item.message]


def test_time_of_a_try_is_carried_over(tmp_path: Path) -> None:
    policy = "{retry_on: connect-failure, per_try_timeout: 20s}"
    text = envoy_text().replace(
        "match: {prefix: /}\n                route: {cluster: c}",
        f"match: {{prefix: /}}\n                route: {{cluster: c, retry_policy: {policy}}}",
    )
    assert fleet_from_text("envoy", text, tmp_path)["routes"]["l"]["timeouts"] == {"attempt": "20s"}


@pytest.mark.parametrize(
    ("kind", "line"),
    [("haproxy", "tune.bufsize 1024"), ("haproxy", "tune.http.maxhdr 32767"), ("nginx", "8 1m"), ("nginx", "4 0k")],
)
def test_limit_out_of_range_leaves_no_empty_section(kind: str, line: str, tmp_path: Path) -> None:
    server = "server { listen 80; location / { return 200; } }"
    nginx = f"events {{}}\nhttp {{ large_client_header_buffers {line}; {server} }}\n"
    haproxy = f"global\n {line}\ndefaults\n mode http\nfrontend f\n bind :80\n http-request return status 200\n"
    result, diagnostics = imported_text(kind, nginx if kind == "nginx" else haproxy, tmp_path)
    assert [listener for listener in result.draft.fleet["listeners"].values() if "headers" in listener] == []
    assert [item.code for item in diagnostics if "was left out" in item.message] == ["LB985"]

"""Headers with variables, and the client's address in other headers, from all three kinds of proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from tests.support.importer import envoy_text, imported

NGINX = "server {{ listen 80; {0} location / {{ {1} proxy_pass http://10.0.0.1:80; }} }}"
HAPROXY = "defaults\n mode http\nfrontend f\n bind :80\n {0}\n default_backend b\nbackend b\n server s 10.0.0.1:80\n"


def envoy(name: str, value: str) -> str:
    return envoy_text(route=f'request_headers_to_add: [{{header: {{key: {name}, value: "{value}"}}}}]')


def route(kind: str, text: str, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any], Diagnostics]:
    """The route and the listener of a configuration with one of each, and what the import reports."""
    file = tmp_path / "source.conf"
    file.write_text(text)
    result, diagnostics = imported(kind, file)
    (of_listener,), (*_, of_route) = (result.draft.fleet[key].values() for key in ("listeners", "routes"))
    return of_route, of_listener, diagnostics


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
def test_a_variable_becomes_its_word(kind: str, text: str, headers: dict[str, str], tmp_path: Path) -> None:
    assert route(kind, text, tmp_path)[0]["headers"]["request"] == {"set": headers}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("", "proxy_set_header X-A $connection_requests;")),
        ("nginx", NGINX.format("", 'proxy_set_header X-A "{tenant}";')),
        ("haproxy", HAPROXY.format('http-request set-header X-A "%[rand] sk-abcdefgh"')),
        ("envoy", envoy(name="x-a", value="%PROTOCOL%")),
    ],
)
def test_a_variable_without_a_word_is_a_comment(kind: str, text: str, tmp_path: Path) -> None:
    assert "headers" not in route(kind, text, tmp_path)[0]
    assert "variables that a fleet has not" in imported(kind, tmp_path / "source.conf")[0].text


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
def test_where_peers_are_trusted_the_listener_forwards_the_address(kind: str, text: str, tmp_path: Path) -> None:
    _, listener, _ = route(kind, text, tmp_path)
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
def test_an_address_that_a_header_names_is_believed_of_near_peers_alone(kind: str, text: str, tmp_path: Path) -> None:
    _, listener, diagnostics = route(kind, text, tmp_path)
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
def test_an_address_that_a_header_names_gets_around_no_list(kind: str, text: str, tmp_path: Path) -> None:
    of_route, listener, _ = route(kind, text, tmp_path)
    assert "client_address" not in listener
    assert of_route["deny_from"] == ["10.6.6.0/24"]
    assert "would get around them" in imported(kind, tmp_path / "source.conf")[0].text.replace("\n    #     ", " ")


def test_an_address_that_decides_in_haproxy_decides_about_lists(tmp_path: Path) -> None:
    named = "option forwardfor except 10.0.0.0/8\n http-request set-src hdr(X-Forwarded-For)"
    of_route, listener, _ = route("haproxy", HAPROXY.format(f"{named}\n {DENIED}"), tmp_path)
    assert listener["client_address"] == {"trusted": ["10.0.0.0/8"], "header": "x-forwarded-for"}
    assert of_route["deny_from"] == ["10.6.6.0/24"]


def test_headers_of_answers_of_nginx_itself_are_comments(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(
        "server {\nlisten 80;\nadd_header X-A 1 always;\nadd_header X-B 2;\n"
        "location / { proxy_pass http://10.0.0.1:80; }\nlocation /ok { return 200 ok; }\n"
        "location /no { return 404; }\n}"
    )
    notes = {
        (note.text, note.place) for note in imported("nginx", file)[0].draft.ledger.notes if "itself" in note.reason
    }
    listener = ("listeners", "http")
    assert notes == {
        ("add_header X-A 1 always", listener), ("add_header X-A 1 always", ("routes", "ok")),
        ("add_header X-A 1 always", ("routes", "no")), ("add_header X-B 2", ("routes", "ok")),
    }  # fmt: skip

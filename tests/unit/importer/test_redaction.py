"""Routes whose match needs a secret are closed and named after their pool, and no other route exposes their pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.importer import envoy_text, imported_text

SECRET = "sk-live-9999888877776666"
ESCAPED = SECRET.replace("-", "\\-")
PROXIED = "proxy_pass http://b;"
_NGINX = (
    "events {}\nhttp {\n map $http_x_key $p { default a; MAPPED b; }\n upstream a { server 10.0.0.1:80; }\n"
    " upstream b { server 10.0.0.2:80; }\n server { listen 80;\n  LOCATION\n"
    "  location / { IF proxy_pass http://TO; }\n }\n}\n"
)
_HAPROXY = (
    "defaults\n mode http\nfrontend f\n bind :80\n RULE\n default_backend a\nbackend a\n server s 10.0.0.1:80\n"
    "backend b\n server s 10.0.0.2:80\n"
)


def _nginx(*, mapped: str = "no", location: str = "", if_: str = "", to: str = "a") -> str:
    text = _NGINX.replace("MAPPED", mapped).replace("LOCATION", location).replace("TO", to)
    return text.replace(" IF", f" {if_}")


def _envoy(match: str) -> str:
    route = f"match: {{{match}}}\n                route: {{cluster: auth}}\n              - match: {{prefix: /}}"
    return envoy_text().replace("match: {prefix: /}", route, 1)


def _routes(kind: str, text: str, directory: Path) -> tuple[dict[str, dict[str, Any]], str]:
    result, diagnostics = imported_text(kind, text, directory)
    return yaml.safe_load(result.text)["routes"], "\n".join([result.text, *map(str, diagnostics)])


@pytest.mark.parametrize(
    ("kind", "text", "secret", "pool"),
    [
        ("nginx", _nginx(mapped=f'"{SECRET}"', to="$p"), SECRET, "b"),
        ("nginx", _nginx(mapped="Zq7", to="$p"), "Zq7", "b"),
        ("nginx", _nginx(if_=f'if ($http_x_key = "{SECRET}") {{ {PROXIED} }}'), SECRET, "b"),
        ("nginx", _nginx(if_=f'if ($http_x_key = "Zq7") {{ {PROXIED} }}'), "Zq7", "b"),
        ("nginx", _nginx(location=f"location ~ ^/{SECRET}/ {{ {PROXIED} }}"), SECRET, "b"),
        ("nginx", _nginx(location=f"location ~* ^/{SECRET}/ {{ {PROXIED} }}"), "9999888877776666", "b"),
        ("nginx", _nginx(location=f"location ~ ^/{ESCAPED}/ {{ {PROXIED} }}"), "9999888877776666", "b"),
        ("nginx", _nginx(location=f"location /{SECRET} {{ {PROXIED} }}"), SECRET, "b"),
        ("haproxy", _HAPROXY.replace("RULE", "use_backend b if { req.hdr(x-key) -m str Zq7 }"), "Zq7", "b"),
        ("haproxy", _HAPROXY.replace("RULE", f"use_backend b if {{ hdr(x-admin) {SECRET} }}"), SECRET, "b"),
        ("haproxy", _HAPROXY.replace("RULE", f"use_backend b if {{ path_beg /{SECRET} }}"), SECRET, "b"),
        ("envoy", _envoy("prefix: /, headers: [{name: x-key, string_match: {exact: Zq7}}]"), "Zq7", "auth"),
        ("envoy", _envoy(f"prefix: /{SECRET}"), SECRET, "auth"),
    ],
)
def test_route_that_needs_a_secret_is_closed(kind: str, text: str, secret: str, pool: str, tmp_path: Path) -> None:
    routes, shown = _routes(kind, text, tmp_path)
    assert secret.lower() not in shown.lower()
    assert routes[pool]["respond"]["status"] == 501
    assert "not-copied" in str(routes[pool]["match"])
    assert "LB984" in shown
    assert f"error LB989: requests for route {pool} use route" in shown
    assert f"# Complete `match`, then replace `respond` with:\n    #   pool: {pool}\n" in shown


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", _nginx(if_=f'if ($http_x_key = "{SECRET}") {{ return 403; }}')),
        ("nginx", _nginx(location=f"location /{SECRET} {{ deny all; {PROXIED} }}")),
        ("haproxy", _HAPROXY.replace("RULE", f"http-request deny if {{ req.hdr(x-key) -m str {SECRET} }}")),
        ("envoy", _envoy("prefix: /, headers: [{name: x-key, string_match: {exact: Zq7}}]").replace(
            "route: {cluster: auth}", "direct_response: {status: 403}", 1)),
    ],
)  # fmt: skip
def test_refusal_by_a_secret_closes_what_it_protected(kind: str, text: str, tmp_path: Path) -> None:
    routes, shown = _routes(kind, text, tmp_path)
    assert not any("pool" in route for route in routes.values() if set(route["match"]) <= {"hosts"})
    assert "another route protects some of the same requests with a secret, which was not copied" in shown


@pytest.mark.parametrize(("agent", "key", "statuses"), [("http_x_key", "Zq7", [403, 501]), ("http_x_a", "b", [403])])
def test_refusal_of_a_server_holds_in_its_locations(agent: str, key: str, statuses: list[int], tmp_path: Path) -> None:
    location = f'if (${agent} = "{key}") {{ return 403; }} location /v1 {{ {PROXIED} }}'
    routes, _ = _routes("nginx", _nginx(location=location), tmp_path)
    v1 = [route for route in routes.values() if route["match"].get("path_prefix") == "/v1"]
    assert sorted(route["respond"]["status"] for route in v1 if "respond" in route) == statuses
    assert sum("headers" in route["match"] for route in v1) == 1


@pytest.mark.parametrize("path", ["/hf-models-v2", "/sk-prod-01", "/pk-metrics"])
def test_path_that_begins_like_a_key_is_kept(path: str, tmp_path: Path) -> None:
    routes, _ = _routes("nginx", _nginx(location=f"location {path} {{ {PROXIED} }}"), tmp_path)
    assert routes[path[1:]]["match"] == {"path_prefix": path}
    assert routes[path[1:]]["pool"] == "b"

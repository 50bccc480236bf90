"""Prefixes that do not end at a segment are reported if a fleet sends longer paths to another pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.importer.compare.samples import samples
from tests.support.importer import envoy_text, imported_text

HAPROXY = (
    "defaults\n mode http\nfrontend f\n bind :80\n {0}\n default_backend b\nbackend a\n server s 10.0.0.1:80\n"
    "backend b\n server s 10.0.0.2:80\n"
)
NGINX = "server {{ listen 80; {} location / {{ proxy_pass http://10.0.0.2; }} }}"
ENVOY = (
    envoy_text()
    .replace("match: {path: /open}", "match: {prefix: /v1/emb}")
    .replace("{cluster: c}", "{cluster: auth}", 1)
)


def misrouted(kind: str, text: str, directory: Path) -> tuple[list[str], dict[str, str]]:
    result, diagnostics = imported_text(kind, text, directory)
    return [item.message for item in diagnostics if item.code == "LB989"], result.draft.longer_paths


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nginx", NGINX.format("location /v1/emb { proxy_pass http://10.0.0.1; }")),
        ("haproxy", HAPROXY.format("use_backend a if { path_beg /v1/emb }")),
        ("envoy", ENVOY),
    ],
)
def test_longer_paths_of_another_pool_are_an_error(kind: str, text: str, tmp_path: Path) -> None:
    messages, longer = misrouted(kind, text, tmp_path)
    assert ["such as /v1/embx" in item for item in messages] == [True]
    assert list(longer.values()) == ["/v1/embx"]


@pytest.mark.parametrize(
    "text",
    [
        NGINX.format("location /v1/emb/ { proxy_pass http://10.0.0.1; }"),
        NGINX.format("location = /v1/emb { proxy_pass http://10.0.0.1; }"),
        NGINX.format("location /v1/emb { proxy_pass http://10.0.0.2; }"),
        NGINX.format("location /v1/emb { return 404; }"),
        NGINX.format(
            "location /v1/emb { proxy_pass http://10.0.0.1; } location ~ ^/v1 { proxy_pass http://10.0.0.3; }"
        ),
        "server { listen 80; server_name a; location /v1/emb { proxy_pass http://10.0.0.1; } }",
    ],
    ids=["whole segment", "exact", "same pool", "answer", "expression", "no route"],
)
def test_other_longer_paths_are_not_reported(text: str, tmp_path: Path) -> None:
    assert misrouted("nginx", text, tmp_path) == ([], {})


def test_prefix_of_envoy_with_whole_segments_is_not_reported(tmp_path: Path) -> None:
    text = ENVOY.replace("{prefix: /v1/emb}", "{path_separated_prefix: /v1/emb}")
    assert misrouted("envoy", text, tmp_path) == ([], {})


def test_rule_that_an_earlier_one_hides_is_not_reported(tmp_path: Path) -> None:
    text = HAPROXY.format("use_backend b if { path_beg /v1/ }\n use_backend a if { path_beg /v1/emb }")
    assert misrouted("haproxy", text, tmp_path) == ([], {})


def test_longer_path_differs_from_other_routes(tmp_path: Path) -> None:
    inner = "location /v1/emb { proxy_pass http://10.0.0.1; } location /v1/embx { proxy_pass http://10.0.0.3; }"
    messages, longer = misrouted("nginx", NGINX.format(inner), tmp_path)
    assert longer == {"v1-emb": "/v1/emby", "v1-embx": "/v1/embxx"}
    assert len(messages) == 2


def test_closed_prefix_is_reported(tmp_path: Path) -> None:
    inner = "location /v1/emb { auth_ldap Restricted; proxy_pass http://10.0.0.1; }"
    messages, _ = misrouted("nginx", NGINX.format(inner), tmp_path)
    assert len(messages) == 1


def test_longer_path_is_a_sample_request(tmp_path: Path) -> None:
    result, _ = imported_text("nginx", NGINX.format("location /v1/emb { proxy_pass http://10.0.0.1; }"), tmp_path)
    paths = [(item.route, item.path) for item in samples(result.draft.fleet, result.draft.longer_paths)]
    assert paths[:2] == [("v1-emb", "/v1/emb/sample?n=1"), ("v1-emb", "/v1/embx")]

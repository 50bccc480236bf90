"""Routes that an import closes: opened as their comments instruct, they are as protected as before the import."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.base.diagnostics import Path as Place
from lbctl.importer.draft import Draft, is_closed
from lbctl.importer.statement import Statement
from tests.support.importer import SAMPLES, imported, imported_text

_PROTECTING = ("auth", "allow_from", "deny_from", "rate_limit", "headers")
_FILES = [
    pytest.param(file, id=f"{file.parent.name}-{file.stem}")
    for file in sorted(SAMPLES.glob("*/*"))
    if file.suffix in {".cfg", ".conf", ".yaml", ".json"}
]
_COMMENT = re.compile(r"`respond` with:|If you open this route, also write:")
_HAPROXY = """
defaults
 mode http
 timeout connect 5s
frontend fe
 bind 127.0.0.1:8090
 acl internal src 10.0.0.0/8
 acl has_key req.hdr(x-api-key) -m found
 http-request deny deny_status 403 unless internal
 http-request deny if !has_key
 default_backend other
backend other
 http-request deny unless { hdr(host) -i api.example.com }
 server c 127.0.0.1:9103
"""
_NGINX = """
events {}
http { server { listen 127.0.0.1:8090; allow 10.0.0.0/8; deny all; location / { root /srv; } } }
"""


def _opened(text: str) -> dict[str, Any]:
    """Return the routes, with the closed ones changed as their comments instruct."""
    routes: dict[str, Any] = yaml.safe_load(text).get("routes", {})
    part = text.partition("\nroutes:\n")[2]
    for block in re.split(r"^  (?=\S+:)", re.split(r"^\S", part, maxsplit=1, flags=re.M)[0], flags=re.M)[1:]:
        name = yaml.safe_load(block.partition("#")[0].partition(":")[0])
        if is_closed(routes[name]) and _COMMENT.search(block):
            lines = [line[6:] for line in block[_COMMENT.search(block).end() :].splitlines() if line[:6] == "    # "]
            routes[name] |= yaml.safe_load("\n".join(lines)) or {}
    return routes


@pytest.mark.slow
@pytest.mark.parametrize("file", _FILES)
def test_closed_route_opens_with_its_protection(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = _opened(imported(file.parent.name, file)[0].text)
    add = Draft.add

    def closed(
        draft: Draft,
        section: str,
        wanted: str,
        origin: Statement,
        value: dict[str, Any] | None = None,
        otherwise: str = "",
    ) -> Place:
        path = add(draft, section, wanted, origin, value, otherwise)
        if section == "routes":
            draft.close(path, "a test closes all routes")
        return path

    monkeypatch.setattr(Draft, "add", closed)
    opened = _opened(imported(file.parent.name, file)[0].text)
    assert {name: _protection(opened.get(name, {})) for name in routes} == {
        name: _protection(route) for name, route in routes.items()
    }


def _protection(route: dict[str, Any]) -> dict[str, Any]:
    return {key: route[key] for key in _PROTECTING if key in route}


@pytest.mark.parametrize(
    ("kind", "text", "route", "keys"),
    [("haproxy", _HAPROXY, "fe", {"auth", "allow_from"}), ("nginx", _NGINX, None, {"allow_from"})],
)
def test_comment_of_closed_route_has_what_it_let_in(
    kind: str, text: str, route: str | None, keys: set[str], tmp_path: Path
) -> None:
    result, _ = imported_text(kind, text, tmp_path)
    routes = _opened(result.text)
    opened = routes[route or next(iter(routes))]
    assert is_closed(opened)
    assert keys <= opened.keys()
    assert opened["allow_from"] == ["10.0.0.0/8"]


def test_only_the_acl_that_reads_the_key_is_a_secret(tmp_path: Path) -> None:
    text = _HAPROXY.replace("deny if !has_key", "deny if is_chat !has_key").replace(
        " acl has_key", " acl is_chat path_beg /v1/chat\n acl has_key"
    )
    result, diagnostics = imported_text(
        "haproxy", text.replace("default_backend", "use_backend other if is_chat\n default_backend"), tmp_path
    )
    assert [item.position.line for item in diagnostics if item.code == "LB984" and item.position] == [9]
    assert "unless { hdr(host) -i api.example.com }" in result.text


def test_hash_of_a_session_that_replicas_name_is_reported(tmp_path: Path) -> None:
    text = (
        "defaults\n mode http\nfrontend f\n bind :80\n default_backend a\n"
        "backend a\n stick-table type string size 1m\n stick on hdr(Mcp-Session-Id)\n server a0 10.0.0.1:80\n"
    )
    _, diagnostics = imported_text("haproxy", text, tmp_path)
    assert any("affinity: {header: mcp-session-id}" in (item.hint or "") for item in diagnostics)


def test_closed_location_names_the_one_before_it(tmp_path: Path) -> None:
    open_ = "location ~ x$ { if ($arg_q) { return 403; } proxy_pass http://10.0.0.1; }"
    first = "location ^~ /a { allow 10.0.0.0/8; deny all; proxy_pass http://10.0.0.1; }"
    text = imported_text("nginx", f"events {{}}\nhttp {{ server {{ {first} {open_} }} }}\n", tmp_path)[0].text
    comment = text.partition("  x: ")[2].partition("match:")[0]
    assert "location ^~ /a { … }: an earlier location protects some of the same requests" in comment
    assert "Write `auth` here, then replace `respond` with:" in comment


def test_comment_reports_that_a_secret_is_left_out(tmp_path: Path) -> None:
    rules = ' http-request deny if { var(txn.a) -m found }\n http-request set-header x-note "api_key: abcdefgh12345"\n'
    head, tail = (
        "defaults\n mode http\nfrontend f\n bind :80\n",
        " default_backend b\nbackend b\n server s 10.0.0.1:80\n",
    )
    text = imported_text("haproxy", head + rules + tail, tmp_path)[0].text
    assert "    #   pool: b\n    #   # (one line with a secret left out)\n    match: {}\n" in text
    assert "abcdefgh" not in text
    assert _opened(text)["f"]["pool"] == "b"

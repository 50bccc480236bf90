"""Configurations with sticky sessions: the pool uses the same key, or the import reports the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.importer import envoy_text, imported_text

HEAD = "defaults\n mode http\nfrontend f\n bind :80\n default_backend b\nbackend b\n"
SERVERS = " server a 10.0.0.1:80\n server b 10.0.0.2:80\n"
NGINX = (
    "upstream u {{ {0} server 10.0.0.1:80; server 10.0.0.2:80; }} server {{ location / {{ proxy_pass http://u; }} }}"
)


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("stick on req.hdr(X-Session)", {"header": "x-session"}),
        ("stick on hdr(X-Session)", {"header": "x-session"}),
        ("stick on req.hdr(X-Session) if { req.hdr(x-session) -m found }", {"header": "x-session"}),
        ("stick on src", {"source_ip": {}}),
        ("stick on req.cook(sid)", {"cookie": "sid"}),
        ("stick on url_param(user)", {"query": "user"}),
        ("stick on req.body,json_query('$.user')", {"json_body": "$.user"}),
        ("stick match hdr(x-a)\n stick store-request hdr(x-a)", {"header": "x-a"}),
        ("balance hdr(x-b)\n stick on hdr(x-a)", {"header": "x-a"}),
        ("balance hdr(x-a)\n hash-balance-factor 150\n stick on hdr(x-a)", {"header": "x-a"}),
    ],
)
def test_stick_rule_becomes_a_hash_of_its_key(lines: str, key: dict[str, Any], tmp_path: Path) -> None:
    result, diagnostics = imported_text("haproxy", f"{HEAD} balance leastconn\n {lines}\n{SERVERS}", tmp_path)
    balance = result.draft.fleet["pools"]["b"]["balance"]
    assert (balance["algorithm"], balance["hash"]["key"]) == ("hash", key)
    assert balance["hash"].get("bounded_load") == (1.5 if "factor" in lines else None)
    assert result.draft.unkept == {}
    assert [item.message for item in diagnostics if "any replica" in item.message] == []


@pytest.mark.parametrize(("table", "ttl"), [("", {}), (" expire 30m", {"ttl": "30m"})])
def test_session_that_an_answer_names_becomes_an_affinity(table: str, ttl: dict[str, str], tmp_path: Path) -> None:
    lines = f"stick-table type string size 1m{table}\n stick store-response res.hdr(X-A)\n stick match req.fhdr(x-a)"
    result, diagnostics = imported_text("haproxy", f"{HEAD} {lines}\n{SERVERS}", tmp_path)
    assert result.draft.fleet["pools"]["b"]["affinity"] == {"header": "x-a", **ttl}
    assert result.draft.unkept == {}
    assert [item.message for item in diagnostics if "any replica" in item.message] == []


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ("stick store-response res.hdr(x-a)\n stick match req.hdr(x-b)", "affinity"),
        ("stick store-response res.hdr(x-a)\n stick match req.hdr(x-a) if { path /a }", "affinity"),
        ("stick store-response res.hdr(x-a)\n stick match req.hdr(x-a)\n stick on src", "affinity"),
        ("stick store-response res.cook(a)\n stick match req.cook(a)", "affinity"),
        ("stick on ssl_fc_session_id", "balance: {algorithm: hash"),
        ("stick match hdr(x-a)", "balance: {algorithm: hash"),
        ("stick on hdr(x-a) if { path_beg /v1 }", "balance: {algorithm: hash"),
        ("stick on hdr(x-a) if !{ hdr(x-a) -m found }", "balance: {algorithm: hash"),
        ("stick on hdr(x-a)\n stick on src", "balance: {algorithm: hash"),
        ("cookie SERVERID prefix", "affinity"),
    ],
)
def test_sessions_that_are_lost_are_reported(lines: str, hint: str, tmp_path: Path) -> None:
    result, diagnostics = imported_text("haproxy", f"{HEAD} {lines}\n{SERVERS}", tmp_path)
    findings = [
        item for item in diagnostics if item.code == "LB985" and "may reach any replica in pool b" in item.message
    ]
    assert findings
    assert all(hint in (item.hint or "") for item in findings)
    assert [*result.draft.unkept] == [("pools", "b")]


@pytest.mark.parametrize("line", ["sticky learn create=$upstream_cookie_a lookup=$cookie_a;", "hash $a$b;"])
def test_sessions_of_nginx_that_are_lost_are_reported(line: str, tmp_path: Path) -> None:
    result, diagnostics = imported_text("nginx", NGINX.format(line), tmp_path)
    assert any("may reach any replica in pool u" in item.message for item in diagnostics)
    assert [*result.draft.unkept] == [("pools", "u")]


def test_only_invalid_replicas_are_left_out(tmp_path: Path) -> None:
    servers = "".join(f" server s{n} {host}:80\n" for n, host in enumerate(("a..a", "b..b", "c", "d..d", "e")))
    pool = imported_text("haproxy", HEAD + servers, tmp_path)[0].draft.fleet["pools"]["b"]
    assert [item["address"] for item in pool["replicas"]] == ["c:80", "e:80"]


def test_pool_stays_if_its_affinity_is_invalid(tmp_path: Path) -> None:
    result, _ = imported_text("haproxy", f"{HEAD} cookie a[] insert maxlife 1us\n{SERVERS}", tmp_path)
    assert "affinity" not in result.draft.fleet["pools"]["b"]
    assert len(result.draft.fleet["pools"]["b"]["replicas"]) == 2
    assert [*result.draft.unkept] == [("pools", "b")]


ENVOY_HASH = "hash_policy: [{header: {header_name: Mcp-Session-Id}}]"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("haproxy", f"{HEAD} stick on req.hdr(Mcp-Session-Id)\n{SERVERS}"),
        ("haproxy", f"{HEAD} balance hdr(mcp-session-id)\n{SERVERS}"),
        ("nginx", NGINX.format("hash $http_mcp_session_id consistent;")),
        (
            "envoy",
            envoy_text()
            .replace(
                "prefix: /}\n                route: {cluster: c}",
                f"prefix: /}}\n                route: {{cluster: c, {ENVOY_HASH}}}",
            )
            .replace("- name: c\n", "- name: c\n    lb_policy: RING_HASH\n"),
        ),
    ],
)
def test_hash_of_sessions_that_replicas_name_is_reported(kind: str, text: str, tmp_path: Path) -> None:
    _, diagnostics = imported_text(kind, text, tmp_path)
    (finding,) = (item for item in diagnostics if "hashes mcp-session-id" in item.message)
    assert (finding.code, finding.hint) == ("LB985", "replace `balance` with `affinity: {header: mcp-session-id}`")

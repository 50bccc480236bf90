"""Imports of HAProxy's configuration, and the errors for invalid input."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run as command
from lbctl.importer.haproxy.tokens import TokenError, split_line
from lbctl.importer.run import run
from tests.support.importer import fleet_from_text, imported

HEAD = (
    "defaults\n mode http\nbackend a\n server a0 10.0.0.1:80\n"
    "backend b\n server b0 10.0.0.2:80\nfrontend f\n bind :80\n"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("server a 'b c' # x", ["server", "a", "b c"]),
        (r"a\ b \# c\\d", ["a b", "#", r"c\d"]),
        (r"replace-path ^/a/(.*) /\1", ["replace-path", "^/a/(.*)", r"/\1"]),
        ('bind "${HOST-127.0.0.1}:80"', ["bind", "127.0.0.1:80"]),
        ('bind "$HOST:80"', ["bind", "${HOST}:80"]),
        ("a'b'\"c\"", ["abc"]),
        (r'"a\"b"', ['a"b']),
        (r"'a\"", None),
        ('"a', None),
    ],
)
def test_line_is_split_as_documented(line: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(TokenError):
            split_line(line)
    else:
        assert [item.text for item in split_line(line)] == expected


def test_named_defaults_sections_are_inherited(tmp_path: Path) -> None:
    text = (
        "defaults base\n mode http\n timeout server 7m\ndefaults more from base\n timeout connect 9s\n"
        "backend a from more\n server a0 10.0.0.1:80\nfrontend f from base\n bind :80\n default_backend a\n"
    )
    result = fleet_from_text("haproxy", text, tmp_path)
    assert result["routes"]["f"]["timeouts"] == {"idle": "7m"}
    assert result["pools"]["a"]["timeouts"] == {"connect": "9s"}


def test_first_rule_wins_over_a_more_specific_one(tmp_path: Path) -> None:
    rules = " use_backend a if { path_beg /v1/ }\n use_backend b if { hdr(host) x.example.com }\n default_backend b\n"
    routes = list(fleet_from_text("haproxy", HEAD + rules, tmp_path)["routes"].values())
    both = {"hosts": ["x.example.com"], "path_prefix": "/v1/"}
    assert [(item["match"], item["pool"]) for item in routes] == [
        ({"path_prefix": "/v1/"}, "a"),
        ({"hosts": ["x.example.com"]}, "b"),
        ({}, "b"),
        (both, "a"),
    ]


def test_hidden_rule_is_a_comment(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(HEAD + " use_backend a if { path_beg /v1 }\n use_backend b if { path_beg /v1/chat }\n")
    result, _ = imported("haproxy", file)
    assert [item["pool"] for item in result.draft.fleet["routes"].values()] == ["a"]
    assert "haproxy.cfg:10 use_backend b" in result.text


@pytest.mark.parametrize(
    ("rule", "closed"),
    [
        ("http-request deny if { req.hdr(x-a) -m reg ^x }", [{}]),
        ("http-request deny if { path_beg /admin/ } !{ src -f /etc/admins }", [{"path_prefix": "/admin/"}]),
        ("http-request auth if { path_beg /admin/ } !{ http_auth_group(users) a }", [{"path_prefix": "/admin/"}]),
        ("http-request auth unless { http_auth(users) } or { path /open }", [{}]),
        ("http-request deny if { path_beg /admin/ } { req.hdr(x-api-key) -m str k }", [{"path_prefix": "/admin/"}]),
    ],
)
def test_unsupported_condition_closes_the_affected_routes(
    rule: str, closed: list[dict[str, str]], tmp_path: Path
) -> None:
    routes = fleet_from_text("haproxy", f"{HEAD} {rule}\n default_backend a\n", tmp_path)["routes"].values()
    assert [item["match"] for item in routes if item.get("respond", {}).get("status") == 501] == closed


def test_server_defaults_and_templates_are_imported(tmp_path: Path) -> None:
    text = (
        "defaults\n mode http\n default-server inter 3s maxconn 8\nfrontend f\n bind :80\n default_backend t\n"
        "backend t\n server-template gpu 2-5 gpu.internal:8000 check port 9 maxconn 16\n"
    )
    pool = fleet_from_text("haproxy", text, tmp_path)["pools"]["t"]
    assert pool["discovery"] == {"dns": {"name": "gpu.internal", "port": 8000, "max_replicas": 4}}
    assert pool["circuit_breaker"] == {"per_replica": {"max_requests": 16}}
    assert pool["health"]["active"] | {"tcp": {}, "interval": "3s", "port": 9} == pool["health"]["active"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frontend 'x\n", ":1:10: error LB980: HAProxy would not read this: a quote is not closed"),
        ("bind :80\n", ":1:1: error LB980: HAProxy would not read this: `bind` stands outside of a section"),
        ("frontend\n", ":1:1: error LB980: HAProxy would not read this: `frontend` needs a name"),
        ("listen x\n mode tcp\n", ":1:1: error LB982: there is no frontend to import"),
    ],
)
def test_invalid_input_is_reported_at_its_position(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(text)
    assert command(["import", "haproxy", str(file)]) == 1
    assert message in capsys.readouterr().err.replace(str(file), "")


TEXT = """
acl x path_beg /v1 use_backend a if { } !{ unless or || http-request deny return auth set-header redirect scheme https
server s 10.0.0.1:80 check weight 0 server-template 1-x cookie balance hdr(x) stick-table track-sc0 src nbsrv(a) lt 1
sc_http_req_rate(0) gt 5 -m reg -f -- http-check expect status 2 option httpchk timeout monitor-uri replace-path ^/(.*)
http_auth(u) realm auth set-log-level silent use-service prometheus-exporter set-src hdr(x) forwardfor header except
crl-file ca-file @system-ca ssl crt crt-list capture path_reg set-var retry-on 503 disable-l7-retry global stats socket
"""
WORDS = st.sampled_from([*TEXT.split(), "\n", "\n", "\n"])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(words=st.lists(WORDS, max_size=40))
def test_import_never_crashes(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "haproxy.cfg"
    file.write_text(HEAD + " default_backend a\n" + " ".join(words) + "\n")
    diagnostics = Diagnostics()
    result = run("haproxy", [str(file)], diagnostics)
    assert result is not None or diagnostics.failed

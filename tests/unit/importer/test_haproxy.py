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
from tests.support.importer import fleet_from_text, imported, imported_text

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


def test_unsupported_protection_keeps_each_route_with_its_pool(tmp_path: Path) -> None:
    rules = (
        " http-request deny deny_status 401 unless has_key or internal\n acl has_key var(txn.key) -m found\n"
        " acl internal src 10.0.0.0/8\n use_backend a if { path_beg /v1 }\n default_backend b\n"
    )
    result, diagnostics = imported_text("haproxy", HEAD + rules, tmp_path)
    routes = result.draft.fleet["routes"].values()
    assert [(item["match"], item["respond"]["status"]) for item in routes] == [({"path_prefix": "/v1"}, 501), ({}, 501)]
    assert [*result.draft.fleet["pools"]] == ["a", "b"]
    for pool in ("a", "b"):
        assert f"# Write `auth` here, then replace `respond` with:\n    #   pool: {pool}\n" in result.text
    assert "deny deny_status 401 unless has_key or internal" in result.text
    (finding,) = (item for item in diagnostics if item.code == "LB988")
    assert (finding.severity, "`auth` if a rule protected the route" in (finding.hint or "")) == ("error", True)


def test_comment_of_a_closed_route_has_all_its_keys(tmp_path: Path) -> None:
    rules = " http-request deny if { var(txn.a) -m found }\n http-request set-header x-a b\n default_backend a\n"
    text = imported_text("haproxy", HEAD.replace("http\n", "http\n timeout server 9m\n", 1) + rules, tmp_path)[0].text
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("# Write `auth` here, then replace `respond` with:")
    kept = ["#   pool: a", "#   timeouts: {idle: 9m}", "#   headers: {request: {set: {x-a: b}}}"]
    assert lines[start + 1 : start + 4] == kept


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            " http-request deny unless { path_beg /v1 }\n default_backend a\n",
            [({"path_prefix": "/v1"}, "a"), ({}, 403)],
        ),
        (
            " http-request deny deny_status 405 if !METH_POST !METH_GET\n default_backend a\n",
            [({"methods": ["POST"]}, "a"), ({"methods": ["GET", "HEAD"]}, "a"), ({}, 405)],
        ),
        (
            " block unless { path_beg /v1 } or { path_beg /w }\n use_backend b if { path /v1/b }\n default_backend a\n",
            [({"path": "/v1/b"}, "b"), ({"path_prefix": "/v1"}, "a"), ({"path_prefix": "/w"}, "a"), ({}, 403)],
        ),
        (
            " http-request deny if { path_beg /v1 } !{ req.hdr(x-a) b }\n default_backend a\n",
            [({"path_prefix": "/v1", "headers": {"x-a": "b"}}, "a"), ({"path_prefix": "/v1"}, 403), ({}, "a")],
        ),
        (
            " http-request deny if { path_beg /v1 } !{ var(txn.a) -m found }\n default_backend a\n",
            [({"path_prefix": "/v1"}, 501), ({}, "a")],
        ),
        (" http-request allow if { src 10.0.0.0/8 }\n default_backend a\n", [({}, "a")]),
        (
            " http-request allow if { src 10.0.0.0/8 }\n http-request deny if { path /x }\n default_backend a\n",
            [({"path": "/x"}, 403), ({}, 501)],
        ),
        (
            " use_backend a unless { path_beg /v1 }\n default_backend b\n",
            [({"path_prefix": "/v1"}, "b"), ({}, "a")],
        ),
        (" use_backend a if !{ path_beg /v1 }\n", [({"path_prefix": "/v1"}, 503), ({}, "a")]),
        (" use_backend a if { path_beg -f /etc/paths }\n default_backend b\n", [({}, "b")]),
    ],
)
def test_negated_condition_is_not_imported_as_its_opposite(
    rules: str, expected: list[tuple[dict[str, object], object]], tmp_path: Path
) -> None:
    routes = fleet_from_text("haproxy", HEAD + rules, tmp_path)["routes"].values()
    assert [(item["match"], item.get("pool") or item["respond"]["status"]) for item in routes] == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("unless { ssl_fc } or { path_beg /acme }", [({}, "https"), ({"path_prefix": "/acme"}, "a")]),
        ("if !{ ssl_fc } !{ path_beg /acme }", [({}, "https"), ({"path_prefix": "/acme"}, "a")]),
        ("if !{ ssl_fc } { path_beg /v1 }", [({"path_prefix": "/v1"}, "https"), ({}, "a")]),
        ("if !{ ssl_fc } !{ src 10.0.0.0/8 }", [({}, "https")]),
    ],
)
def test_redirect_to_https_keeps_its_exceptions(
    condition: str, expected: list[tuple[dict[str, str], str]], tmp_path: Path
) -> None:
    text = f"{HEAD} http-request redirect scheme https {condition}\n default_backend a\n"
    routes = fleet_from_text("haproxy", text, tmp_path)["routes"].values()
    assert [(item["match"], item.get("pool") or item["respond"]["redirect"]) for item in routes] == expected


LATE = "{ rand(9) lt 3 }"


@pytest.mark.parametrize(
    ("rules", "expected", "misrouted"),
    [
        (f" use_backend a if {LATE}\n default_backend b\n", [({}, "b")], 1),
        (f" use_backend a if {{ path_beg /v1 }} {LATE}\n default_backend b\n",
         [({"path_prefix": "/v1"}, 501), ({}, "b")], 1),
        (f" use_backend a if {{ path_beg /v1 }} {LATE}\n use_backend b if {{ path_beg /v1 }}\n",
         [({"path_prefix": "/v1"}, 501)], 0),
        (f" use_backend a if {{ path_beg /v1 }} {LATE}\n use_backend b if {{ path_beg /v1/b }}\n",
         [({"path_prefix": "/v1/b"}, "b"), ({"path_prefix": "/v1"}, 501)], 1),
        (f" use_backend a if {{ path_beg /v1 }} !METH_POST {LATE}\n default_backend b\n",
         [({"path_prefix": "/v1", "methods": ["POST"]}, "b"), ({"path_prefix": "/v1"}, 501), ({}, "b")], 1),
        (f" use_backend a if {{ path /x }} or {LATE}\n default_backend b\n", [({"path": "/x"}, "a"), ({}, "b")], 1),
        (f" use_backend k if {LATE}\n default_backend b\n", [({}, 501)], 0),
        (
            " use_backend a if { path_beg /v1 }\n use_backend b if { path_end .json }\n",
            [({"path_prefix": "/v1"}, "a"), ({"path_regex": ".*\\.json"}, "b")],
            1,
        ),
        (
            " use_backend a if { path_beg /v1 }\n use_backend b if { path_reg ^/w/[ab] }\n",
            [({"path_prefix": "/v1"}, "a"), ({"path_regex": "/w/[ab].*"}, "b")],
            0,
        ),
    ],
)  # fmt: skip
def test_condition_that_no_match_expresses(
    rules: str, expected: list[tuple[dict[str, object], object]], misrouted: int, tmp_path: Path
) -> None:
    keyed = "backend k\n http-request deny unless { req.hdr(x-a) b }\n server s 10.0.0.1:80\n"
    result, diagnostics = imported_text("haproxy", HEAD.replace("frontend", f"{keyed}frontend") + rules, tmp_path)
    routes = result.draft.fleet["routes"].values()
    assert [(item["match"], item.get("pool") or item["respond"]["status"]) for item in routes] == expected
    assert [item.severity for item in diagnostics if item.code == "LB989"] == ["error"] * misrouted
    lines = [line.strip() for line in result.text.splitlines()]
    assert ("# Complete `match`, then replace `respond` with:" in lines) == ("path_beg" in rules and LATE in rules)


@pytest.mark.slow
def test_many_unclear_conditions_leave_each_route_once(tmp_path: Path) -> None:
    unclear = f" use_backend a if {{ path_beg /v1 }} {LATE}\n" * 30
    specific = "".join(f" use_backend b if {{ path_beg /v1/{number:02} }}\n" for number in range(30))
    routes = fleet_from_text("haproxy", f"{HEAD}{unclear}{specific} default_backend b\n", tmp_path)["routes"].values()
    paths = [item["match"].get("path_prefix", "/") for item in routes]
    assert sorted(paths) == sorted(["/", "/v1", *(f"/v1/{number:02}" for number in range(30))])
    assert [item["respond"]["status"] for item in routes if "respond" in item] == [501]


def test_closed_route_names_all_that_it_needs(tmp_path: Path) -> None:
    rules = f" use_backend a if {{ path /x }} {LATE}\n use_backend b if {{ path /x }}\n default_backend b\n"
    guard = " http-request deny if { var(txn.a) -m found }\n"
    text = imported_text("haproxy", HEAD + guard + rules, tmp_path)[0].text
    assert "# Write `auth` here, complete `match`, then replace `respond` with:\n    #   pool: a\n" in text
    reason = "this later rule handles the requests that do not meet the route's condition"
    assert f"use_backend b if {{ path /x }}: {reason}" in " ".join(text.replace("#", "").split())


def test_fallback_serves_where_its_condition_holds(tmp_path: Path) -> None:
    spare = " use_backend b if { nbsrv(a) lt 1 } { path /x }\n"
    rules = f"{spare} use_backend a if {{ path /x }}\n use_backend a if {{ path /y }}\n"
    routes = fleet_from_text("haproxy", HEAD + rules, tmp_path)["routes"].values()
    assert [(item["match"], item.get("fallback")) for item in routes] == [({"path": "/x"}, "b"), ({"path": "/y"}, None)]


def test_long_condition_is_not_expanded(tmp_path: Path) -> None:
    condition = " or ".join(f"{{ path /{n} }} {{ method GET }}" for n in range(20))
    text = f"{HEAD} http-request deny unless {condition}\n default_backend a\n"
    (route,) = fleet_from_text("haproxy", text, tmp_path)["routes"].values()
    assert route["respond"]["status"] == 501


def test_thresholds_of_checks_are_imported(tmp_path: Path) -> None:
    text = HEAD.replace("10.0.0.1:80", "10.0.0.1:80 check rise 4 fall 7") + " default_backend a\n"
    check = fleet_from_text("haproxy", text, tmp_path)["pools"]["a"]["health"]["active"]
    assert (check["healthy_threshold"], check["unhealthy_threshold"]) == (4, 7)


@pytest.mark.parametrize(("used", "code"), [("a", 0), ("missing", 1)])
def test_exit_code_depends_on_whether_a_route_serves(
    used: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "haproxy.cfg", tmp_path / "fleet.yaml"
    file.write_text(f"{HEAD} use_backend missing if {{ path /x }}\n default_backend {used}\n")
    assert command(["import", "haproxy", str(file), "-f", str(out)]) == code
    assert out.exists()
    assert ("error LB988" in (errors := capsys.readouterr().err), "LB988" in errors) == (bool(code), True)


def test_pool_of_a_backend_in_tcp_mode_is_kept(tmp_path: Path) -> None:
    text = "frontend f\n mode http\n bind :80\n default_backend t\nbackend t\n server s 10.0.0.1:80\n"
    result, diagnostics = imported_text("haproxy", text, tmp_path)
    assert result.draft.fleet["pools"]["t"]["replicas"] == [{"name": "s", "address": "10.0.0.1:80"}]
    assert "# To open this route, replace `respond` with:\n    #   pool: t\n" in result.text
    findings = [item for item in diagnostics if "'t' is in TCP mode" in item.message]
    assert [(item.code, item.position.line) for item in findings if item.position] == [("LB985", 5)]


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
        ("frontend 'x\n", ":1:10: error LB980: invalid HAProxy configuration: a quote is not closed"),
        ("bind :80\n", ":1:1: error LB980: invalid HAProxy configuration: `bind` is outside any section"),
        ("frontend\n", ":1:1: error LB980: invalid HAProxy configuration: `frontend` needs a name"),
        ("backend x\n mode http\n", ":1:1: error LB982: the configuration has no frontend to import"),
        ("listen x\n mode tcp\n", ":1:1: error LB982: listen x is in TCP mode, but lbctl supports only HTTP (if"),
        (
            "global\nfrontend x\n bind :80\n",
            ":2:1: error LB982: frontend x is in TCP mode (HAProxy's default",
        ),
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

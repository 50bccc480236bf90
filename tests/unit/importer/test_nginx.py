"""Imports of nginx's configuration, and the errors for invalid input."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run as command
from lbctl.importer.run import run
from tests.support.importer import SAMPLES, fleet_from_text, imported, imported_text

NGINX = SAMPLES / "nginx"


def server(body: str) -> str:
    return f"upstream up {{ server 10.0.0.1:80; }}\nserver {{ listen 80; {body} }}"


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("location / { proxy_pass http://up; }", {}),
        ("location = /health { proxy_pass http://up; }", {"path": "/health"}),
        ("location /v1/ { proxy_pass http://up; }", {"path_prefix": "/v1/"}),
        ("location ^~ /v1/ { proxy_pass http://up; }", {"path_prefix": "/v1/"}),
        ("location ~ ^/v1/(.*)$ { proxy_pass http://up; }", {"path_prefix": "/v1/"}),
        ("location ~ ^/v1/chat$ { proxy_pass http://up; }", {"path": "/v1/chat"}),
        (r"location ~ \.json$ { proxy_pass http://up; }", {"path_regex": r".*\.json"}),
        ("location ~* ^/Models { proxy_pass http://up; }", {"path_regex": "/[Mm][Oo][Dd][Ee][Ll][Ss].*"}),
    ],
)
def test_location_becomes_a_match(body: str, match: dict[str, str], tmp_path: Path) -> None:
    (route,) = fleet_from_text("nginx", server(body), tmp_path)["routes"].values()
    assert route["match"] == match


@pytest.mark.parametrize(
    ("passing", "rewrite"),
    [
        ("location /api/ { proxy_pass http://up/; proxy_set_header Host $host; }", {"path_prefix": "/"}),
        ("location / { proxy_pass http://up/v1/; proxy_set_header Host $host; }", {"path_prefix": "/v1/"}),
        ("location /api/ { proxy_pass http://up/api/; proxy_set_header Host $host; }", None),
        ("location /api/ { rewrite ^/api/(.*)$ /$1 break; proxy_pass http://up; proxy_set_header Host $host; }",
         {"path_prefix": "/"}),
        ("location / { proxy_pass http://up; }", {"host": "up"}),
        ("location / { proxy_pass http://up; proxy_set_header Host localhost:11434; }", {"host": "localhost:11434"}),
    ],
)  # fmt: skip
def test_path_and_host_of_requests_are_kept(passing: str, rewrite: dict[str, str] | None, tmp_path: Path) -> None:
    (route,) = fleet_from_text("nginx", server(passing), tmp_path)["routes"].values()
    assert route.get("rewrite") == rewrite


@pytest.mark.parametrize(
    "body",
    [
        "location / { auth_jwt a; proxy_pass http://up; }",
        "location / { auth_request /check; proxy_pass http://up; }",
        "auth_request /check; location / { proxy_pass http://up; }",
        "location / { if ($ssl_client_verify != SUCCESS) { return 403; } proxy_pass http://up; }",
        "location / { proxy_pass http://$unknown; }",
        "location / { limit_except GET { auth_basic a; auth_basic_user_file /etc/x; } proxy_pass http://up; }",
        "location / { root /srv; }",
        "location / { rewrite ^/(a|b)/(.*)$ /$2 break; proxy_pass http://up; }",
        "location / { fastcgi_pass unix:/run/php.sock; }",
    ],
)
def test_unsupported_directive_closes_the_route(body: str, tmp_path: Path) -> None:
    (route,) = fleet_from_text("nginx", server(body), tmp_path)["routes"].values()
    assert route["respond"]["status"] == 501
    assert "pool" not in route


def test_denied_methods_become_a_rejecting_route(tmp_path: Path) -> None:
    body = "location /v1/ { limit_except GET POST { deny all; } proxy_pass http://up; proxy_set_header Host $host; }"
    own, others = fleet_from_text("nginx", server(body), tmp_path)["routes"].values()
    assert own == {"match": {"path_prefix": "/v1/", "methods": ["GET", "POST", "HEAD"]}, "pool": "up"}
    assert others == {"match": {"path_prefix": "/v1/"}, "respond": {"status": 403}}


def test_file_of_conf_d_becomes_a_fragment(tmp_path: Path) -> None:
    text = server("location / { proxy_pass http://up; }")
    fragment = {"kind": "nginx", "form": "fragment", "config": "/etc/nginx/conf.d/lbctl.conf"}
    assert fleet_from_text("nginx", text, tmp_path)["proxies"] == {"nginx": fragment}
    assert "proxies" not in fleet_from_text("nginx", f"events {{}} http {{ {text} }}", tmp_path)


def test_server_answers_404_outside_its_locations(tmp_path: Path) -> None:
    text = (
        "server { listen 80; location / { return 200 a; } }"
        "server { listen 80; server_name b.example.com; location /v1/ { return 200 b; } }"
    )
    routes = fleet_from_text("nginx", text, tmp_path)["routes"]
    assert routes["b-others"] == {
        "match": {"hosts": ["b.example.com"]},
        "respond": {"status": 404, "body": "not found"},
    }
    assert routes["default"]["match"] == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "http {\n  server {\n",
            ':2:1: error LB980: invalid nginx configuration: unexpected end of file, expecting "}"',
        ),
        ("http {}\n", ":1:1: error LB982: there is no `server` to import"),
        ("server { listen 80; location / { } }", ":1:1: error LB982: no route could be imported"),
        ("{" * 100, ":1:1: error LB980: blocks and includes are nested more than 64 levels deep"),
        ("a\0b", ":1:1: error LB980: the file contains a NUL byte"),
    ],
)
def test_invalid_input_is_reported_at_its_position(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(text)
    assert command(["import", "nginx", str(file)]) == 1
    output = capsys.readouterr()
    assert message in output.err.replace(str(file), "")
    assert output.out == ""


def test_depth_of_includes_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        text = "location /a { " * 30 + f"include {number + 1}.conf;" + " }" * 30
        (tmp_path / f"{number}.conf").write_text(text)
    (tmp_path / "3.conf").write_text("return 204;")
    (tmp_path / "nginx.conf").write_text("server { listen 80; include 0.conf; }")
    assert command(["import", "nginx", str(tmp_path / "nginx.conf")]) == 1
    assert "2.conf:1:1: error LB980: blocks and includes are nested more than 64 levels deep" in capsys.readouterr().err


def test_missing_or_too_large_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = tmp_path / "large.conf"
    large.write_bytes(b"#" * (4 << 20) + b"\n")
    assert command(["import", "nginx", str(tmp_path / "none.conf")]) == 1
    assert command(["import", "nginx", str(large)]) == 1
    assert command(["import", "nginx", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert "none.conf:1:1: error LB001" in errors
    assert "large.conf:1:1: error LB980: the file is too large" in errors
    assert "error LB002" in errors


def test_invalid_includes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.conf").write_text("server { listen 80; location / { return 200 leaked; } }")
    (tmp_path / "inner" / "link.conf").symlink_to(tmp_path / "secret.conf")
    main = tmp_path / "inner" / "nginx.conf"
    main.write_text(
        "include ../secret.conf;\ninclude link.conf;\ninclude nginx.conf;\ninclude none.conf;\n"
        "server { listen 80; location / { return 200 own; } }"
    )
    result, diagnostics = imported("nginx", main)
    reasons = [
        (item.position.line if item.position else 0, item.message) for item in diagnostics if item.code == "LB983"
    ]
    assert [line for line, _ in reasons] == [1, 2, 3, 4]
    assert "is outside" in reasons[0][1]
    assert "is outside" in reasons[1][1]
    assert "includes itself" in reasons[2][1]
    assert "no such file" in reasons[3][1]
    assert "leaked" not in result.text


MAP = 'map $http_authorization $who {{ default "{0}"; "Bearer sk-aaaaaaaa" {1}; "Bearer sk-bbbbbbbb" b; }} '
TENANTS = (
    'server {{ listen 80; location / {{ if ($who = "") {{ return 401; }} proxy_pass http://10.0.0.1:80; '
    "proxy_set_header X-Tenant $who; }} }}"
)


@pytest.mark.parametrize(
    ("otherwise", "first", "expected"), [("", "a", {"x-tenant": "{tenant}"}), ("", "1", None), ("nobody", "a", None)]
)
def test_variable_of_a_map_of_keys_is_the_tenant(
    otherwise: str, first: str, expected: dict[str, str] | None, tmp_path: Path
) -> None:
    result, diagnostics = imported_text("nginx", MAP.format(otherwise, first) + TENANTS.format(), tmp_path)
    (route,) = result.draft.fleet["routes"].values()
    assert route.get("headers", {}).get("request", {}).get("set") == expected
    assert [item.code for item in diagnostics].count("LB984") == 1


def test_secrets_of_an_unused_map_are_one_finding(tmp_path: Path) -> None:
    text = MAP.format("", "a") + "server { listen 80; location / { proxy_pass http://10.0.0.1:80; } }"
    result, diagnostics = imported_text("nginx", text, tmp_path)
    assert [item.message for item in diagnostics if item.code == "LB984"] == [
        "`map` contains a secret, which was not copied"
    ]
    assert "sk-" not in result.text


def test_unknown_directive_of_events_is_reported(tmp_path: Path) -> None:
    text = (
        "events { work_connections 9; worker_connections 8; use epoll; }\n"
        "http { server { listen 80; location / { proxy_pass http://10.0.0.1:80; } } }"
    )
    result, diagnostics = imported_text("nginx", text, tmp_path)
    messages = [f"{item.message} ({item.hint})" for item in diagnostics if "`events`" in item.message]
    expected = "nginx has no such directive in `events`, and does not start (write `worker_connections`)"
    assert messages == [f"work_connections: {expected}"]
    assert "work_connections 9: nginx has no such directive in `events`" in " ".join(result.text.split())
    assert {item.name for item, fate in result.draft.ledger.fates() if fate == "lbctl"} >= {"worker_connections", "use"}


@pytest.mark.parametrize(
    ("name", "own", "dropped"),
    [
        ("proxy_set_header", "proxy_set_header X-B b;", "X-A"),
        ("proxy_set_header", "proxy_set_header x-a b;", ""),
        ("proxy_set_header", "", ""),
        ("add_header", "add_header X-B b;", "X-A"),
    ],
)
def test_headers_that_a_location_drops_are_reported(name: str, own: str, dropped: str, tmp_path: Path) -> None:
    text = f"server {{ listen 80; {name} X-A a; location / {{ proxy_pass http://10.0.0.1:80;\n{own} }} }}"
    findings = [item for item in imported_text("nginx", text, tmp_path)[1] if "ignores the `" in item.message]
    assert [item.message.rpartition(": ")[2] for item in findings] == ([dropped] if dropped else [])
    assert [item.position.line for item in findings if item.position] == ([2] if dropped else [])


def test_import_does_not_overwrite_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample, out = str(NGINX / "vllm-two-replicas.conf"), tmp_path / "fleet.yaml"
    assert command(["import", "nginx", sample, "-f", str(out)]) == 0
    written = out.read_text()
    assert command(["validate", str(out)]) == 0
    assert command(["import", "nginx", sample, "-f", str(out)]) == 1
    assert out.read_text() == written
    assert "LB961" in capsys.readouterr().err


def test_harmful_settings_are_reported_at_their_line() -> None:
    _, diagnostics = imported("nginx", NGINX / "vllm-two-replicas.conf")
    findings = [(item.position.line, item.message) for item in diagnostics if item.position]
    assert findings == [
        (2, "without `zone` in the upstream, each worker counts connections and failures separately"),
        (4, "fail_timeout=10000s removes a replica for this time after a failure"),
        (5, "fail_timeout=10000s removes a replica for this time after a failure"),
        (7, "nginx's default limit of 1 MiB for request bodies rejects long prompts and images with 413"),
        (10, "nginx buffers responses by default, so tokens arrive in bursts"),
        (10, "nginx uses HTTP/1.0 by default and opens a new connection to a replica for each request"),
        (10, "nginx's default read timeout of 60s cuts off a model that sends nothing for more than 60s"),
    ]


TEXT = """
server location upstream proxy_pass http://a { } ; /v1/ ~ if ($a = 1) map $x $http_y listen 80 return 301 weight=x
split_clients 5% * include *.conf " error_page @f limit_req zone=z:1m deny all rewrite ^/( set mirror add_header
auth_basic off auth_request /check auth_request_set $upstream_http_x stub_status proxy_set_header Authorization Host
$remote_addr ${KEY} https://a.example/b ssl_certificate ssl ssl_crl gzip_types allow 10.0.0.0/8 internal @f
"""
WORDS = st.sampled_from(TEXT.split())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(words=st.lists(WORDS, max_size=40))
def test_import_never_crashes(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "nginx.conf"
    file.write_text("server { listen 80; location / { return 200 a; } " + " ".join(words) + " }")
    diagnostics = Diagnostics()
    result = run("nginx", [str(file)], diagnostics)
    assert result is not None or diagnostics.failed


@pytest.mark.parametrize(
    "lines",
    [
        "location / { if ($cookie_x = 1) { proxy_pass http://10.0.0.2; } proxy_pass http://10.0.0.1; }",
        "location / { set $p 10.0.0.1; if ($arg_x) { set $p 10.0.0.2; } proxy_pass http://$p; }",
        "location / { proxy_pass http://$mapped; }",
        "location / { proxy_pass http://10.0.0.1; } } server { listen 80; server_name ~^a; location / { return 200; }",
    ],
)
def test_requests_that_go_elsewhere_are_an_error(lines: str, tmp_path: Path) -> None:
    mapped = "map $http_user_agent $mapped { default 10.0.0.1; ~curl 10.0.0.2; }"
    text = f"events {{}}\nhttp {{ {mapped} server {{ listen 80; {lines} }} }}\n"
    result, diagnostics = imported_text("nginx", text, tmp_path)
    assert [item.severity for item in diagnostics if item.code == "LB989"] == ["error"]
    assert [item["match"] for item in result.draft.fleet["routes"].values()] == [{}]


@pytest.mark.parametrize(
    ("first", "second", "misrouted"),
    [
        ("^~ /a", "~ \\.json$", 1),
        ("^~ /a", "~ ^/b/", 0),
        ("^~ /a", "~ ^/a/b$", 1),
        ("~ z", "~ \\.json$", 1),
        ("~ \\.json$", "~ \\.css$", 0),
        ("/a", "~ \\.json$", 0),
    ],
)
def test_location_that_nginx_prefers_is_an_error(first: str, second: str, misrouted: int, tmp_path: Path) -> None:
    one, other = (f"location {item} {{ proxy_pass http://10.0.0.{n}; }}" for n, item in enumerate((first, second)))
    _, diagnostics = imported_text("nginx", f"events {{}}\nhttp {{ server {{ {one} {other} }} }}\n", tmp_path)
    assert len([item for item in diagnostics if item.code == "LB989"]) == misrouted

"""`lbctl explain route`: the route and why it matched, the pin or draw, the settings with their lines, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import fleet_of, yaml_of

FLEET = """\
version: 1
defaults:
  route: {timeouts: {idle: 7m}}
listeners:
  public: {bind: "127.0.0.1:8443"}
  internal: {bind: "127.0.0.1:8080", max_body: 1KiB}
routes:
  chat:
    listeners: [public]
    match: {hosts: ["*.example.com"], path_prefix: /v1/chat, methods: [POST]}
    split: {a: 3, b: 1}
    pin:
      - {header: x-version, equals: v2, pool: b}
      - {cookie: beta, equals: "1", pool: b}
    sticky_split: {cookie: variant}
    retry: {attempts: 1}
  models: {match: {path_prefix: /v1, model: [gpt*]}, pool: b}
  wide: {match: {path_prefix: /v1}, pool: a}
  gone: {match: {path: /v0}, respond: {status: 410, body: gone}}
  at: {match: {path: /m/x@y}, pool: a, rate_limit: [{by: client_ip, concurrent: 2}]}
pools:
  a:
    timeouts: {connect: 3s}
    replicas:
      - {name: one, address: "10.0.0.1:8000", weight: 3}
      - {name: two, address: "10.0.0.2:8000", weight: 1}
      - {name: old, address: "10.0.0.3:8000", weight: 9, drain: true}
  b: {replicas: [{name: only, address: "10.0.0.4:8000"}]}
"""
CHAT = "https://api.example.com:8443/v1/chat/completions"


class Explain:
    """Runs the command on FLEET, and returns its output as JSON or text."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = directory / "fleet.yaml"
        self.path.write_text(FLEET)
        self.capsys = capsys

    def code(self, *arguments: str) -> int:
        return run(["explain", "route", *arguments, str(self.path)])

    def text(self, *arguments: str) -> str:
        assert self.code(*arguments) == 0
        return self.capsys.readouterr().out

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.text(*arguments, "-o", "json"))["proxies"]
        return rows

    def row(self, *arguments: str) -> dict[str, Any]:
        """Return the one row that all three proxies share."""
        (row,) = self.rows(*arguments)
        assert [name.split()[0] for name in row["on"]] == ["nginx", "haproxy", "envoy"]
        return row


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    return Explain(tmp_path, capsys)


def test_matching_route_is_shown_with_line_and_reason(explain: Explain) -> None:
    row = explain.row("POST", CHAT)
    assert (row["route"], row["at"]) == ("chat", f"{explain.path}:9:5")
    assert [(item["kind"], item["actual"]) for item in row["conditions"]] == [
        ("host", "api.example.com"),
        ("path", "/v1/chat/completions"),
        ("method", "POST"),
    ]
    assert [(item["route"], item["decided_by"]) for item in row["also"]] == [("wide", "host")]
    failed = {item["route"]: [each["kind"] for each in item["failed"]] for item in row["missed"]}
    assert failed == {"models": ["model"], "gone": ["path"], "at": ["path"]}


def test_draw_is_shown_with_its_probabilities(explain: Explain) -> None:
    row = explain.row("POST", CHAT)
    assert row["choice"]["by"] == "draw"
    assert row["choice"]["at"] == f"{explain.path}:11:12"
    assert {item["pool"]: item["probability"] for item in row["pools"]} == {"a": 0.75, "b": 0.25}
    assert row["pools"][0]["replicas"] == {"one": 0.75, "two": 0.25}


@pytest.mark.parametrize(
    ("header", "by", "line"),
    [
        ("x-version: v2", "pin", ":13:9"),
        ("cookie: other=2; beta=1", "pin", ":14:9"),
        ("cookie: variant=b", "kept", ":11:12"),
    ],
)
def test_pin_or_cookie_takes_precedence_over_the_draw(explain: Explain, header: str, by: str, line: str) -> None:
    row = explain.row("POST", CHAT, "-H", header)
    assert (row["choice"]["by"], row["choice"]["at"]) == (by, f"{explain.path}{line}")
    assert [item["pool"] for item in row["pools"]] == ["b"]


def test_each_setting_has_its_line_or_is_a_default(explain: Explain) -> None:
    policy = {item["path"]: (item["value"], item["at"]) for item in explain.row("POST", CHAT)["policy"]}
    assert policy["routes.chat.timeouts.idle"] == ("7m", f"{explain.path}:3:28")
    assert policy["routes.chat.timeouts.request"] == ("unlimited", None)
    assert policy["routes.chat.retry.attempts"] == ("1", f"{explain.path}:16:23")
    assert policy["routes.chat.retry.idempotent"] == ("false", None)
    assert policy["pools.a.timeouts.connect"] == ("3s", f"{explain.path}:23:25")
    assert policy["pools.b.timeouts.connect"] == ("2s", None)
    assert policy["listeners.public.max_body"] == ("unlimited", None)


def test_limit_is_shown_as_each_instance_has_it(explain: Explain) -> None:
    limit = {"rate_limit": [{"by": "all", "rate": "20/s"}]}
    fleet = fleet_of(route=limit, proxies={"edge": {"kind": "envoy", "instances": 3}})
    explain.path.write_text(yaml_of(fleet))
    (row,) = explain.rows("GET", "/")
    policy = {item["path"]: item["value"] for item in row["policy"]}
    (shown,) = [value for path, value in policy.items() if ".rate_limit[0]" in path]
    assert shown == "by all: 7/s, burst 7 on each instance (by all: 20/s, burst 20 in total)"
    (breaker,) = [value for path, value in policy.items() if path.endswith("circuit_breaker.max_requests")]
    assert breaker == "171 on each instance (512 in total)"
    (idle,) = [value for path, value in policy.items() if path.startswith("routes.") and path.endswith("timeouts.idle")]
    assert idle == "5m"


def test_port_selects_the_listener(explain: Explain) -> None:
    assert explain.row("POST", "http://api.example.com:8080/v1/chat")["route"] == "wide"
    assert explain.row("POST", "http://api.example.com/v1/chat", "--listener", "public")["route"] == "chat"
    assert explain.code("POST", "http://api.example.com/v1/chat") == 64
    assert "internal (127.0.0.1:8080), public (127.0.0.1:8443)" in explain.capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://a:99/", "lbctl: no listener has port 99: using the only listener, web (127.0.0.1:8080)\n"),
        ("https://a/", "lbctl: no listener has port 443: using the only listener, web (127.0.0.1:8080)\n"),
        ("http://a:8080/", ""),
        ("/", ""),
    ],
)
def test_unknown_port_is_reported(url: str, message: str, explain: Explain) -> None:
    explain.path.write_text(
        "version: 1\nlisteners: {web: {bind: '127.0.0.1:8080'}}\n"
        "routes: {all: {match: {path_prefix: /}, respond: {status: 200}}}\n"
    )
    assert explain.code("GET", url, "-o", "json") == 0
    shown = explain.capsys.readouterr()
    assert (json.loads(shown.out)["request"]["listener"], shown.err) == ("web", message)


def test_proxies_that_differ_have_separate_rows(explain: Explain, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"model": "gpt-4"}')
    rows = explain.rows("POST", "/v1/x", "--listener", "public", "--body", str(body))
    assert {row["on"][0].split()[0]: row["route"] for row in rows} == {"nginx": "wide", "haproxy": "models"}
    dotted = explain.rows("GET", "/v1/../v0", "--listener", "public")
    assert [(len(row["on"]), row["status"]) for row in dotted] == [(3, 400)]
    at = explain.rows("GET", "/m/x%40y", "--listener", "public")
    assert {(row["route"], row["read"]["path"]) for row in at} == {("at", "/m/x@y")}


def test_route_that_a_proxy_cannot_protect_is_closed(explain: Explain) -> None:
    rows = explain.rows("GET", "/m/x@y", "--listener", "public")
    closed = {name.split()[0]: row for row in rows for name in row["on"]}
    assert (closed["envoy"]["status"], closed["nginx"]["status"]) == (503, None)
    assert "LB442" in closed["envoy"]["losses"][0]


def test_answers_of_the_proxy_itself_are_shown(explain: Explain, tmp_path: Path) -> None:
    assert explain.row("GET", "/v0", "--listener", "public")["status"] == 410
    assert explain.row("GET", "/nowhere", "--listener", "public")["status"] == 404
    body = tmp_path / "long"
    body.write_bytes(b"x" * 2000)
    assert explain.row("POST", "/v1", "--listener", "internal", "--body", str(body))["status"] == 413


def test_text_output_has_a_line_for_each_fact(explain: Explain) -> None:
    text = explain.text("POST", CHAT, "-H", "x-version: v2")
    assert f"route      chat  {explain.path}:9:5" in text
    assert "because of POST *.example.com/v1/chat/…" in text
    assert "also       wide matches (/v1/…); chat takes precedence because of its host" in text
    assert f"pool       a pin selects it  {explain.path}:13:9" in text
    assert f"routes.chat.timeouts.idle: 7m  {explain.path}:3:28" in text
    assert "routes.chat.timeouts.request: unlimited  default" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("GET", "api.example.com/v1"),
        ("GET", "ftp://x/v1"),
        ("GET", "http:///v1"),
        ("GET", "http://a:99999/v1"),
        ("GET", "http://[::1/v1"),
        ("G T", "/v1"),
        ("CONNECT", "/v1"),
        ("GET", "/v1", "-H", "no colon"),
        ("GET", "/v1", "--listener", "publik"),
        ("GET", "/v1", "-t", "apache"),
    ],
)
def test_invalid_arguments_are_a_usage_error(explain: Explain, arguments: tuple[str, ...]) -> None:
    assert explain.code(*arguments) == 64


def test_missing_body_or_invalid_fleet_is_an_error(explain: Explain) -> None:
    assert explain.code("GET", "/v1", "--listener", "public", "--body", "nowhere") == 1
    assert "nowhere: error LB001" in explain.capsys.readouterr().err
    explain.path.write_text("version: 1\nroutes: {a: {pool: nowhere}}\n")
    assert explain.code("GET", "/v1") == 1
    assert "LB101" in explain.capsys.readouterr().err

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbctl.ir.listeners import AccessLog, Listener, PathMatch, Rule
from lbctl.ir.routes import Respond, Route
from tests.support.nginx import nginx_view, running, send_request, socket_in

RULES = (
    Rule("header-first", "", PathMatch("prefix", "/v1/"), (), (("x-tier", 'in"ter$a\\ctive'),)),
    Rule("exact-host", "one.example.com", PathMatch("prefix", "/v1/chat/")),
    Rule("any-subdomain", "*.example.com", PathMatch("prefix", "/v1/chat/")),
    Rule("regex", "", PathMatch("regex", "/v1/(?P<host>m-[a-z]+)/.*")),
    Rule("anchored", "", PathMatch("regex", "^/anchored/.$")),
    Rule("posts", "", PathMatch("exact", "/v1/a b"), ("POST", "PUT")),
    Rule("exact", "", PathMatch("exact", "/v1/a b")),
    Rule("model", "", PathMatch("prefix", "/models"), models=("llama", "qwen-*")),
    Rule("prefix", "", PathMatch("prefix", "/v1")),
    Rule("dots", "", PathMatch("exact", "/a.c")),
)


@pytest.fixture(scope="module")
def front() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        routes = tuple(Route(rule.route, Respond(200, rule.route)) for rule in RULES)
        listener = Listener("public", socket_in(directory), rules=RULES, access_log=AccessLog(format="none"))
        with running(nginx_view(listener, routes), directory):
            yield directory


@pytest.mark.parametrize(
    ("path", "headers", "route"),
    [
        ("/v1/x", {"X-Tier": 'in"ter$a\\ctive'}, "header-first"),
        ("/v1/x", {"X-Tier": 'in"ter$a\\ctivE'}, "prefix"),
        ("/v1/x", {"X-Tier": "interactive"}, "prefix"),
        ("/v1/chat", {"Host": "ONE.example.com:8443"}, "exact-host"),
        ("/v1/chat/x", {"Host": "two.one.example.com"}, "any-subdomain"),
        ("/v1/chat/x", {"Host": "example.com"}, "prefix"),
        ("/v1/chat/x", {"Host": "oneexample.com"}, "prefix"),
        ("/v1/m-abc/x", {}, "regex"),
        ("/v1/m-abc", {}, "prefix"),
        ("/anchored/x", {}, "anchored"),
        ("/v1/a%20b?x=/v1/m-a/b", {}, "exact"),
        ("/v1/a%20b/", {}, "prefix"),
        ("/v1", {}, "prefix"),
        ("/v1/", {}, "prefix"),
        ("/v1x", {}, None),
        ("/", {}, None),
        ("/abc", {}, None),
        ("/a.c", {}, "dots"),
        ("/a.c%0A", {}, None),
        ("/models/x", {"X-Model": "llama"}, "model"),
        ("/models/x", {"X-Model": "qwen-2.5"}, "model"),
        ("/models/x", {"X-Model": "llama-3"}, None),
        ("/models/x", {}, None),
        ("/v1/%0A1%0AGET", {}, "prefix"),
        ("/x%0A/v1", {}, None),
    ],
)
def test_first_matching_rule_decides(front: Path, path: str, headers: dict[str, str], route: str | None) -> None:
    status, body, response_headers = send_request(front, path, headers=headers)
    if route is None:
        assert status == 404
        assert json.loads(body)["error"]["type"] == "not_found"
        assert response_headers["content-type"] == "application/json"
    else:
        assert (status, body) == (200, route)


@pytest.mark.parametrize(
    ("method", "route"), [("POST", "posts"), ("PUT", "posts"), ("GET", "exact"), ("DELETE", "exact")]
)
def test_method_decides_between_rules_of_one_path(front: Path, method: str, route: str) -> None:
    assert send_request(front, "/v1/a%20b", method)[1] == route


def test_rule_matches_among_hundreds_of_conditions(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    rules = tuple(Rule(f"r{n}", "", PathMatch(), (), (("x-tenant", f"tenant-{n}"),)) for n in range(350))
    routes = tuple(Route(rule.route, Respond(200, rule.route)) for rule in rules)
    listener = Listener("public", socket_in(tmp_path), rules=rules, access_log=AccessLog(format="none"))
    with running(nginx_view(listener, routes), tmp_path) as front:
        assert send_request(front, "/", headers={"x-tenant": "tenant-349"})[1] == "r349"
        assert send_request(front, "/", headers={"x-tenant": "tenant-0"})[1] == "r0"
        assert send_request(front, "/", headers={"x-tenant": "tenant-350"})[0] == 404

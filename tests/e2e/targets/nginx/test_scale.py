"""Fleets with pins, rules and models close to the limits of nginx: a hundred nested variables, a token of 4 KiB."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.ir.address import Address
from lbctl.ir.listeners import AccessLog, Listener, PathMatch, Rule
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.routes import ApiKeys, Auth, Forward, HeaderRules, Pin, Respond, Route, Share, StickySplit
from lbctl.ir.secrets import ApiKey
from tests.support.nginx import forward_to, nginx_view, running, send_request, socket_in
from tests.support.processes.binaries import require
from tests.support.processes.ports import free_port

POOLS = tuple(Pool(name, (Replica("r", Address("127.0.0.1", 9)),)) for name in ("one", "two", "three"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def alternating_pins(count: int) -> tuple[Pin, ...]:
    """Return pins that alternate between a header and a cookie."""
    kinds = ("header", "cookie")
    return tuple(Pin(kinds[n % 2], f"x-{n % 2}", f"v{n}", ("two", "three")[n % 2]) for n in range(count))  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", [(Share("one", 1),), (Share("one", 1), Share("two", 0))])
@pytest.mark.parametrize("count", [3, 150, 450])
def test_each_of_many_pins_matches(count: int, shares: tuple[Share, ...], directory: Path) -> None:
    requests = [
        ({"x-0": "v0"}, "two"),
        ({"cookie": f"x-1=v{count // 2 * 2 - 1}"}, "three"),
        ({"x-0": f"v{count}"}, "one"),
    ]
    last = f"v{(count - 1) // 2 * 2}"
    requests += [({"x-0": last}, "two"), ({"x-0": last, "cookie": "x-1=v1"}, "three"), ({}, "one")]
    assert chosen_pools(directory, Forward(shares, alternating_pins(count)), [headers for headers, _ in requests]) == [
        pool for _, pool in requests
    ]


def test_pins_on_one_header_are_one_map(directory: Path) -> None:
    many = tuple(Pin("header", "x-user", f"u{n}", "two") for n in range(500))
    pins = (*many, Pin("header", "x-user", "u7", "three"), Pin("header", "X-Late", "1", "three"))
    requests = [
        {"x-user": "u499"},
        {"x-user": "u7"},
        {"x-user": "u0", "x-late": "1"},
        {"x-late": "1"},
        {"x-user": "U1"},
    ]
    forward = Forward((Share("one", 1),), pins)
    assert chosen_pools(directory, forward, requests) == ["two", "two", "two", "three", "one"]
    assert (directory / "nginx.conf").read_text().count('map "$http_x_user"') == 1


def test_pin_overrides_the_sticky_variant(directory: Path) -> None:
    forward = Forward((Share("one", 1), Share("two", 1)), alternating_pins(3), StickySplit("cookie", "variant"))
    requests = [{"cookie": "variant=one"}, {"cookie": "variant=two"}, {"cookie": "variant=one; x-1=v1"}]
    assert chosen_pools(directory, forward, requests) == ["one", "two", "three"]


@pytest.mark.parametrize("tenants", [450, pytest.param(4500, marks=pytest.mark.nightly)])
def test_many_rules_and_hundreds_of_models_fit(tenants: int, directory: Path) -> None:
    names = [f"meta-llama/Some-Long-Model-Name-Instruct-{n}" for n in range(300)]
    model = Rule("model", "", PathMatch("prefix", "/models"), models=(*names, "qwen-*"))
    rules = (model, *(Rule(f"r{n}", "", PathMatch(), (), (("x-tenant", f"t{n}"),)) for n in range(tenants)))
    listener = Listener("public", socket_in(directory), rules=rules, access_log=AccessLog(format="none"))
    with running(nginx_view(listener, tuple(Route(rule.route, Respond(200, rule.route)) for rule in rules)), directory):
        assert send_request(directory, "/", headers={"x-tenant": f"t{tenants - 1}"})[1] == f"r{tenants - 1}"
        assert send_request(directory, "/models", headers={"x-model": names[-1]})[1] == "model"
        assert send_request(directory, "/models", headers={"x-model": "qwen-2"})[1] == "model"
        assert send_request(directory, "/models", headers={"x-model": names[-1] + "0"})[0] == 404


def chosen_pools(directory: Path, forward: Forward, requests: list[dict[str, str]]) -> list[str]:
    """Return the pool of each request, from the access log."""
    log = directory / "access.log"
    listener = Listener("public", socket_in(directory), rules=(Rule("r"),), access_log=AccessLog(str(log)))
    with running(nginx_view(listener, (Route("r", forward),), POOLS), directory):
        for number, headers in enumerate(requests):
            send_request(directory, f"/{number}", headers=headers)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["pool"] for line in sorted(lines, key=lambda line: int(line["path"][1:]))]


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308, 444, 499])
def test_status_with_a_meaning_for_nginx_is_returned(status: int, directory: Path) -> None:
    respond = Route("r", Respond(status, "$body", "text/plain"), response_headers=HeaderRules((("location", "/x"),)))
    listener = Listener("public", socket_in(directory), rules=(Rule("r"),), access_log=AccessLog(format="none"))
    with running(nginx_view(listener, (respond,)), directory):
        for method in ("GET", "POST"):
            answered, body, headers = send_request(directory, "/", method)
            assert (answered, body) == (status, "" if status == 304 else "$body")
            assert (headers["location"], headers["content-type"]) == ("/x", "text/plain")


def test_nginx_accepts_the_variables_of_many_routes(directory: Path) -> None:
    routes = "".join(
        f"  a-route-with-a-long-name-{n}: {{match: {{path_prefix: /r{n}, headers: {{x-h{n}: v}}}}, "
        f"split: {{p: 1, q: 1}}, fallback: s, sticky_split: {{cookie: c{n}}}, "
        f"pin: [{{header: x-pin-{n}, equals: y, pool: p}}]}}\n"
        for n in range(160)
    )
    pools = "".join(f'  {name}: {{replicas: [{{address: "127.0.0.1:{n + 1}"}}]}}\n' for n, name in enumerate("pqs"))
    fleet = f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:{free_port()}"}}}}\nroutes:\n{routes}pools:\n{pools}'
    (directory / "fleet.yaml").write_text(fleet)
    assert run(["render", "-t", "nginx", "-d", str(directory / "out"), str(directory / "fleet.yaml")]) == 0
    options = ["-p", str(directory / "out"), "-c", "nginx.conf", "-e", "stderr", "-g", f"pid {directory}/nginx.pid;"]
    process = subprocess.run(
        [require("nginx"), "-t", *options], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "hash" not in process.stderr


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_many_keys_fit_the_hash_table(count: int, directory: Path) -> None:
    keys = tuple(ApiKey("t", key=f"sk-{hashlib.sha256(str(n).encode()).hexdigest()}") for n in range(count))
    route = Route("r", forward_to("one"), auth=Auth(ApiKeys("keys.yaml")))
    listener = Listener("public", socket_in(directory), rules=(Rule("r"),), access_log=AccessLog(format="none"))
    with running(replace(nginx_view(listener, (route,), POOLS), api_keys={"r": keys}), directory):
        assert send_request(directory, "/", headers={"authorization": keys[-1].key})[0] == 503
        assert send_request(directory, "/", headers={"authorization": keys[-1].key[1:]})[0] == 401
    assert "map_hash" not in (directory / "stderr.log").read_text()

"""A fragment that `lbctl serve` drives next to three other sites, with own lines that change, break and are fixed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lbctl.cli import run
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of, pool_of, put
from tests.support.processes.hosts import HostMachine, haproxy_host, nginx_host
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.picker import picker_section
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_KEYS = {"auth": {"api_keys": {"file": "keys"}}}
_BEARER = {"authorization": "Bearer of-acme"}


def _fleet(member: Replica, proxy: dict[str, Any]) -> Fleet:
    return fleet_of(pool_of([member]), route=_KEYS, proxies={"edge": proxy})


def _client(fleet: Fleet) -> Client:
    return Client(int(fleet["listeners"]["gateway"]["bind"].rpartition(":")[2]))


@contextmanager
def _serving(fleet: Fleet, files: dict[str, str]) -> Iterator[ControlPlane]:
    with controlling(fleet, start=False) as control:
        put(control.files, {"keys": "of-acme: acme\n", **files})
        control.start()
        _in_sync(control)
        yield control


def _in_sync(control: ControlPlane) -> None:
    eventually(lambda: control.proxies["edge"]["state"] == "SYNCED")


def _named(control: ControlPlane, text: str) -> None:
    """Wait until the proxy's status or the log of `serve` contains the text."""
    eventually(lambda: text in control.proxies["edge"].get("reason", "") or text in control.log)


def _own_line_of(client: Client) -> list[str]:
    response = client.get("/v1/x", headers=_BEARER)
    assert response.status == 200, response
    return [value for name, value in response.json["headers"] if name.lower() == "x-own"]


def _accepted_within(host: HostMachine, fleet: Fleet, kind: str, own: str, line: str) -> None:
    """Check that `lbctl render --within` accepts the fragment in the host's own file, and rejects another place and bad
    lines."""
    folder = host.main.parent / "fleet"
    put(folder, {own: line.format("x"), "keys": "of-acme: acme\n"})
    command = ["render", "-t", kind, "-d", str(folder / "out"), str(write_fleet(folder, fleet)), "--within"]
    assert run([*command, str(host.main)]) == 0
    assert run([*command, str(folder / "keys")]) in (1, 5)
    put(folder, {own: f"{line.format('x')}no-such-directive x;\n"})
    assert run([*command, str(host.main)]) == 5


def _check(host: HostMachine, fleet: Fleet, own: str, line: str, wrong: str) -> None:
    client, before = _client(fleet), host.answers()
    _accepted_within(host, fleet, fleet["proxies"]["edge"]["kind"], own, line)
    with _serving(fleet, {own: line.format("first")}) as control:
        assert _own_line_of(client) == ["first"]
        assert client.get("/v1/x").status == 401
        assert host.answers() == before
        put(control.files, {own: line.format("second")})
        eventually(lambda: _own_line_of(client) == ["second"])
        for broken, place in ((wrong, f"{own}:1"), (line.format("third") + "}{\n", own)):
            put(control.files, {own: broken})
            _named(control, place)
            assert _own_line_of(client) == ["second"]
        (control.files / own).unlink()
        (control.files / own).symlink_to("/etc/hostname")
        _named(control, "points outside its directory")
        assert _own_line_of(client) == ["second"]
        (control.files / own).unlink()
        put(control.files, {own: line.format("fourth")})
        eventually(lambda: _own_line_of(client) == ["fourth"])
        _in_sync(control)
        assert host.answers() == before


def test_nginx_fragment_leaves_the_sites_of_its_host_unchanged() -> None:
    with replicas("a", "b") as (a, b), nginx_host(b) as host:
        reload = ["/usr/bin/env", "kill", "-HUP", str(host.proxy.process.pid)]
        own = {"location": {"everything": ["own-lines"]}}
        proxy = {"kind": "nginx", "form": "fragment", "config": str(host.fragment), "include": own}
        fleet = _fleet(a, {**proxy, "reload": {"command": reload, "min_interval": "100ms"}})
        _check(host, fleet, "own-lines", "proxy_set_header X-Own {};\n", "listen 80;\n")


_OF_THE_HOST = """http {
limit_req_zone all zone=host:1m rate=1r/m;
limit_req zone=host;
satisfy any;
allow 127.0.0.0/8;
deny all;
mirror /x;
proxy_method DELETE;
ssi on;
ssi_types *;
sub_filter prompt changed;
sub_filter_types *;
add_after_body /x;
addition_types *;
client_body_in_file_only on;
"""


def _in_http_of(host: HostMachine, lines: str) -> None:
    host.main.write_text(host.main.read_text().replace("http {\n", lines))
    host.proxy.reload()


@pytest.mark.parametrize("auth", ["keys", "service"])
def test_settings_of_the_host_do_not_affect_a_fragment(auth: str) -> None:
    with replicas("a", "b") as (a, b), nginx_host(b) as host:
        _in_http_of(host, _OF_THE_HOST)
        reload = ["/usr/bin/env", "kill", "-HUP", str(host.proxy.process.pid)]
        proxy = {"kind": "nginx", "form": "fragment", "config": str(host.fragment), "reload": {"command": reload}}
        pool = pool_of([a], balance={"algorithm": "pick"})
        external = {"auth": {"external": {"url": f"http://{b.address}/check"}}}
        fleet_route = _KEYS if auth == "keys" else external
        fleet = fleet_of(pool, route=fleet_route, proxies={"edge": proxy}, **picker_section())
        with _serving(fleet, {}) as control:
            eventually(lambda: control.status["picker"]["running"])
            client, headers = _client(fleet), {**_BEARER, "content-type": "application/json"}
            answers = [client.post("/v1/x", b'{"prompt": "x"}', headers) for _ in range(3)]
            b.behave(status=401)
            refused = client.post("/v1/x", b'{"prompt": "x"}', {"content-type": "application/json"})
        assert [answer.json["body"] for answer in answers] == ['{"prompt": "x"}'] * 3
        assert [(seen.method, seen.path) for seen in a.seen] == [("POST", "/v1/x")] * 3
        assert refused.status == 401
        assert "[error]" not in host.proxy.stderr.read_text()
        assert [host.site().status for _ in range(2)] == [200, 503]


def test_haproxy_fragment_leaves_the_sites_of_its_host_unchanged() -> None:
    with replicas("a", "b") as (a, b), haproxy_host(b) as host, short_pauses(HAPROXY_RELOADS):
        reload = ["/usr/bin/env", "kill", "-USR2", str(host.proxy.process.pid)]
        own = {"frontend": {"gateway": ["own-lines"]}}
        proxy = {"kind": "haproxy", "form": "fragment", "config": str(host.fragment), "include": own}
        socket = str(host.main.with_name("admin.sock"))
        fleet = _fleet(a, {**proxy, "runtime_api": socket, "reload": {"command": reload}})
        _check(host, fleet, "own-lines", "http-request set-header x-own {}\n", "http-request bogus\n")


_FILTER = """\
name: own.header
typed_config:
  "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
  default_source_code: {inline_string: "function envoy_on_request(h) h:headers():replace('x-own', '%s') end"}
"""


def test_envoy_gets_included_filters_by_xds() -> None:
    with replicas("a") as (a,):
        fleet = fleet_of(pool_of([a]), **driven("edge"))
        fleet["proxies"]["edge"]["include"] = {"http_filters": ["own"]}
        with (
            controlling(fleet, files={"own": _FILTER % "first"}) as control,
            control.envoy("edge", ["edge"]) as envoy,
        ):
            client = envoy.client()
            eventually(lambda: _own_line_of(client) == ["first"])
            put(control.files, {"own": "name: own\n"})
            eventually(lambda: "not a typed HTTP filter" in control.log)
            assert _own_line_of(client) == ["first"]
            put(control.files, {"own": _FILTER % "third"})
            eventually(lambda: _own_line_of(client) == ["third"])

"""The configurations that `--compare` starts connect only to loopback, and its output contains no secret."""

from __future__ import annotations

import ipaddress
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.compare import sessions
from lbctl.importer.compare.differences import ObservedRequest, differences, observed
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.samples import SampleRequest, example, samples
from lbctl.importer.compare.sources import envoy, haproxy, nginx
from lbctl.importer.compare.sources.nginx_destinations import Destinations
from lbctl.importer.envoy.read import read as read_envoy
from lbctl.importer.haproxy.read import read as read_haproxy
from lbctl.importer.nginx.read import read as read_nginx
from lbctl.importer.run import KINDS
from tests.support.importer import imported
from tests.support.importer import samples as files
from tests.support.processes.binaries import require

CASES = [pytest.param(kind, file, id=f"{kind}-{file.stem}") for kind in KINDS for file in files(kind)]
CLOSED_RULE = "http-request return status 501 content-type text/plain string closed hdr x-lbctl-closed 0"
ADDRESS = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?![\w.])")
NOT_DESTINATIONS = re.compile(r"^\s*(allow|deny|set_real_ip_from|acl|http-request|.hostname.:|.address_prefix.:|#)")
DESTINATIONS = {
    "nginx": re.compile(r"^\s*(?:server|\w+_pass|listen) (?:\w+://)?([\w.\[\]-]+(?::\d+)?)(?=[\s;/$])", re.MULTILINE),
    "haproxy": re.compile(r"^\s*(?:bind|server \S+) (\S+)", re.MULTILINE),
    "envoy": re.compile(r"^\s*.address.: .([\d.]+)", re.MULTILINE),
}


def rewritten(kind: str, file: Path, places: StandIns) -> str:
    diagnostics = Diagnostics()
    if kind == "nginx":
        return nginx.rewrite(read_nginx(str(file), diagnostics), places).text
    if kind == "haproxy":
        return haproxy.rewrite(read_haproxy([str(file)], diagnostics), places).text
    return envoy.rewrite(read_envoy(str(file), diagnostics), places).text


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_rewritten_source_connects_only_to_loopback(kind: str, file: Path, tmp_path: Path) -> None:
    fleet = imported(kind, file)[0].draft.fleet
    binds = {str(item["bind"]): 20000 + number for number, item in enumerate(fleet["listeners"].values())}
    text = rewritten(kind, file, StandIns(tmp_path, binds, {}))
    upstreams = set(re.findall(r"^\s*upstream (\S+)", text, re.MULTILINE))
    destinations = [item for item in DESTINATIONS[kind].findall(text) if item not in {*upstreams, "{"}]
    assert destinations
    assert [item for item in destinations if not item.startswith("127.0.0.1")] == []
    lines = [line for line in text.splitlines() if not NOT_DESTINATIONS.match(line)]
    other_addresses = {
        item for line in lines for item in ADDRESS.findall(line) if not ipaddress.ip_address(item).is_loopback
    }
    assert other_addresses == set()


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_every_route_has_a_matching_sample_request(kind: str, file: Path) -> None:
    fleet = imported(kind, file)[0].draft.fleet
    sample_requests = list(samples(fleet))
    assert {item.route for item in sample_requests} >= set(fleet["routes"])
    for item in sample_requests:
        match = fleet["routes"].get(item.route, {}).get("match", {})
        path = item.path.partition("?")[0]
        assert path.startswith(match.get("path_prefix", "/").rstrip("/"))
        assert match.get("path", path) == path
        assert "path_regex" not in match or re.fullmatch(match["path_regex"], path)


@pytest.mark.parametrize(
    "pattern", ["/v1/(chat/)?completions", r"/a/[0-9]+\.json", "/(x|y)/.*", r"/\d{3}/[^/]+", "/[Mm]"]
)
def test_example_of_an_expression_matches_it(pattern: str) -> None:
    assert re.fullmatch(pattern, example(pattern))


def test_lost_header_is_reported_without_its_value() -> None:
    file = next(item for item in files("nginx") if item.stem == "provider-fallback")
    draft = imported("nginx", file)[0].draft
    before = ObservedRequest(200, "10.4.0.1:8000", headers=(("authorization", "Bearer sk-secret"),))
    after = ObservedRequest(200, "10.4.0.2:8000", headers=(("x-more", "1"),))
    reported = list(differences(draft.fleet, before, after))
    assert reported == ["headers lost: authorization", "headers added: x-more"]


def test_direct_responses_are_compared_without_error_pages() -> None:
    fleet: dict[str, Any] = {"listeners": {}, "pools": {}, "routes": {}}
    before = observed(410, {"X-Why": "moved", "Server": "nginx"}, b"gone\n")
    assert list(differences(fleet, before, observed(410, {"x-why": "moved"}, b"gone"))) == []
    others = list(differences(fleet, before, observed(410, {}, b"else")))
    assert others == ["response headers lost: x-why", "response body"]
    page = observed(404, {}, b"<html><body>404</body></html>")
    assert list(differences(fleet, page, observed(404, {}, b'{"error": {}}'))) == []


def nginx_text(location: str, directory: Path) -> str:
    """Return the configuration that a comparison runs for a server with this location."""
    source = directory / "nginx.conf"
    source.write_text(f"events {{}} http {{ server {{ listen 80; location / {{ {location} }} }} }}")
    places = StandIns(directory / "own", {"0.0.0.0:80": 20000}, {"10.0.0.1:80": 20001})
    return rewritten("nginx", source, places)


def test_directives_that_write_files_are_left_out(tmp_path: Path) -> None:
    text = nginx_text("proxy_pass http://10.0.0.1; proxy_store /tmp/kept; proxy_temp_path /tmp/kept;", tmp_path)
    assert "proxy_pass http://127.0.0.1:20001;" in text
    assert "/tmp/kept" not in text


MANY_WORDS = pytest.param("error_page " + "404 " * 5000 + "/x;", id="many-words")


@pytest.mark.parametrize("directive", ["access_by_lua_file /x;", "dav_methods PUT;", "unheard_of on;", MANY_WORDS])
def test_directive_that_is_not_listed_closes_its_location(directive: str, tmp_path: Path) -> None:
    text = nginx_text(f"proxy_pass http://10.0.0.1; {directive}", tmp_path)
    assert "return 501 closed;" in text
    assert "proxy_pass" not in text
    assert directive not in text


DESTINATIONS_OF_NGINX = {
    "http://10.0.0.1": "http://127.0.0.1:20001",
    "https://10.0.0.1:80/v1/": "http://127.0.0.1:20001/v1/",
    "http://u/v1": "http://u/v1",
    "http://u$request_uri": "http://u${lbctl_path_0}",
    "http://$host": "http://${lbctl_host_0}",
    "$scheme://$host:80$uri": "http://${lbctl_host_1}${lbctl_path_0}",
    "http://10.0.0.2": "",
    "http://unix:/run/docker.sock": "",
    "http://10.0.0.1$uri": "http://127.0.0.1:20001${lbctl_path_0}",
    "http://$request_filename": "",
}


@pytest.mark.parametrize(("url", "expected"), DESTINATIONS_OF_NGINX.items())
def test_destinations_lead_only_to_substitutes(url: str, expected: str, tmp_path: Path) -> None:
    found = Destinations(StandIns(tmp_path, {}, {"10.0.0.1:80": 20001}), ())
    found.upstreams.add("u")
    destination = found.of(url, "http")
    assert (destination.url if destination is not None else "") == expected


def test_variable_of_a_destination_comes_from_known_hosts(tmp_path: Path) -> None:
    found = Destinations(StandIns(tmp_path, {}, {"10.0.0.1:80": 20001}), ())
    found.upstreams.add("u")
    assert found.of("http://$http_x", "http") is not None
    ((head, lines),) = found.maps()
    assert head == 'map "$http_x" $lbctl_host_0'
    assert sorted(lines) == ["10.0.0.1 127.0.0.1:20001;", "10.0.0.1:80 127.0.0.1:20001;", 'default "";', "u u;"]


def test_closed_authorization_closes_what_asks_it(tmp_path: Path) -> None:
    text = nginx_text(
        "auth_request /ask; proxy_pass http://10.0.0.1; } location = /ask { fastcgi_pass 127.0.0.1:9000;", tmp_path
    )
    assert text.count("return 501 closed;") == 2
    assert "proxy_pass" not in text


CLOSED_VARIABLES = {
    "its destination": ("set $d 10.0.0.1; proxy_pass http://$d; slice 1m;", "d"),
    "another location": ("set $v 1; slice 1m; } location /b { proxy_pass http://10.0.0.1; proxy_set_header x $v;", "v"),
    "a capture": ("if ($uri ~ ^/(?<v>.)) { slice 1m; } } location /b { return 200 $v;", "v"),
}


@pytest.mark.parametrize(("location", "name"), CLOSED_VARIABLES.values(), ids=CLOSED_VARIABLES)
def test_variables_of_closed_locations_are_empty(location: str, name: str, tmp_path: Path) -> None:
    text = nginx_text(location, tmp_path)
    assert f'map "" ${name} {{\n        default "";\n    }}' in text
    (tmp_path / "own").mkdir()
    (tmp_path / "rewritten.conf").write_text(text)
    command = [require("nginx"), "-t", "-p", str(tmp_path), "-c", "rewritten.conf", "-e", "stderr", "-g", "pid pid;"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr


def test_variables_that_are_set_keep_their_values(tmp_path: Path) -> None:
    text = nginx_text("set $v 1; set $args x; return 200 $v;", tmp_path)
    assert "map " not in text


RULES_OF_HAPROXY = {
    "http-request deny if { path_beg /a } !{ src 10.0.0.0/8 }": "http-request deny if { path_beg -n /a } "
    "!{ src -n 10.0.0.0/8 }",
    "http-request set-header X-A %[env(KEY)]": "http-request set-header X-A '%[str(stand-in)]'",
    "http-request set-header X-A %[path,map(/etc/passwd)] if { path /a }": CLOSED_RULE + " if { path -n /a }",
    "http-request lua.run if { path -f /etc/passwd }": CLOSED_RULE,
    "http-request deny if { src name.example }": CLOSED_RULE,
    "option httplog": "",
}


@pytest.mark.parametrize(("line", "expected"), RULES_OF_HAPROXY.items())
def test_rules_of_haproxy_run_or_answer_in_their_place(line: str, expected: str, tmp_path: Path) -> None:
    source = tmp_path / "haproxy.cfg"
    source.write_text(f"frontend f\n {line}\n")
    lines = rewritten("haproxy", source, StandIns(tmp_path, {}, {})).splitlines()
    assert [each.strip() for each in lines[3:]] == ([expected] if expected else [])


def test_defaults_for_tcp_stay_for_sections_that_name_them(tmp_path: Path) -> None:
    source = tmp_path / "haproxy.cfg"
    source.write_text("defaults d\n  mode tcp\nbackend b from d\n  mode http\nbackend c from d\n  mode tcp\n")
    text = rewritten("haproxy", source, StandIns(tmp_path, {}, {}))
    assert "defaults d\n    mode tcp\nbackend b from d\n    mode http\n" in text
    assert "backend c" not in text


def test_table_that_must_not_run_is_empty(tmp_path: Path) -> None:
    source = tmp_path / "haproxy.cfg"
    source.write_text(
        "frontend f\n  mode http\n  bind :80\n  http-request track-sc0 src table t\n"
        "backend t\n  mode http\n  stick-table type ip size 9k unheard-of on\n"
    )
    text = rewritten("haproxy", source, StandIns(tmp_path, {"0.0.0.0:80": 20000}, {}))
    assert "http-request track-sc0 src table t\n" in text
    assert "stick-table type ip size 1k\n" in text


KEYS: list[dict[str, Any]] = [
    {"balance": {"hash": {"key": {"header": "x-a"}}}},
    {"balance": {"hash": {"key": {"cookie": "x-a"}}}},
    {"balance": {"hash": {"key": {"query": "x-a"}}}},
    {"affinity": {"header": "x-a"}},
]


@pytest.mark.parametrize("key", KEYS)
def test_session_on_several_replicas_is_a_difference(key: dict[str, Any]) -> None:
    fleet = {"pools": {"p": {"replicas": [{"address": "a:1"}, {"address": "b:1"}], **key}}}
    sample, turns = SampleRequest("r", "l", "GET", "h", "/"), [0]

    def kept(_: SampleRequest) -> ObservedRequest:
        return ObservedRequest(200, replica="a:1", answer=(("x-a", "s"),))

    def spread(_: SampleRequest) -> ObservedRequest:
        turns[0] += 1
        return ObservedRequest(200, replica="ab"[turns[0] % 2], answer=(("x-a", "s"),))

    def found(before: sessions.Ask, after: sessions.Ask) -> list[str]:
        return [*sessions.differences(fleet, {"pool": "p"}, sample, before, after)]

    (difference,) = found(kept, spread)
    assert "x-a) reach several replicas" in difference
    assert found(kept, kept) == found(spread, spread) == found(spread, kept) == []


def test_requests_of_a_session_have_its_name() -> None:
    asked = list[SampleRequest]()

    def ask(sample: SampleRequest) -> ObservedRequest:
        asked.append(sample)
        return ObservedRequest(200, replica="a:1", answer=(("x-a", "named"),))

    for key in KEYS:
        fleet = {"pools": {"p": {"replicas": [{"address": "a:1"}, {"address": "b:1"}], **key}}}
        assert [
            *sessions.differences(fleet, {"pool": "p"}, SampleRequest("r", "l", "GET", "h", "/?n=1"), ask, ask)
        ] == []
    named = {(item.path, *sorted(item.headers.items())) for item in asked}
    assert named >= {
        ("/?n=1", ("x-a", "session-1")),
        ("/?n=1", ("cookie", "x-a=session-1")),
        ("/?n=1&x-a=session-1",),
        ("/?n=1", ("x-a", "named")),
    }

"""`lbctl explain route` agrees with the real proxies: random fleets of overlapping rules, random requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.base.quantities import parse_version
from lbctl.ir.listeners import Listener, Rule
from lbctl.targets import target
from lbctl.targets.load import load
from lbctl.targets.reading import Message
from lbctl.targets.route_trace import explain
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes.binaries import Kind, rendered_version
from tests.support.processes.fleet import bind, running
from tests.support.processes.http1 import Request

_ROUTES = 40
_JSON = "application/json"

_HOSTS = ["a.example.com", "b.example.com", "a.eu.example.com", "example.com", "other.net"]
_PATTERNS = ["*.example.com", "*.eu.example.com"]
_SEGMENTS = ["v1", "chat", "m", "7", "a@b", "x.y", "~u", "it's"]
_REGEXES = ["/v1/[a-z]+", "/v1/.*", "/(v1|m)/chat(/[0-9]+)?", "/.*", r"/\w+/7", "/v1/chat/?", "/[^/]+", "/m.*7"]
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
_HEADERS = {"x-tier": ["gold", 'a "b" $c'], "x-kind": ["1", "2"], "x_under": ["1"]}
_MODELS = ["gpt", "gpt-4", "llama-3", "gpt*", "gpt-*", "llama*"]
_NAMED = ["gpt", "gpt-4", "gpt-5", "llama-3", "llama", "other", ""]

_KINDS: dict[str, dict[str, Any]] = {
    "any": {"path_prefix": "/{n}"},
    "host": {"hosts": ["h{n}.example.com"], "path_prefix": "/{n}"},
    "wildcard": {"hosts": ["*.example.com"], "path_prefix": "/{n}"},
    "exact": {"path": "/{n}/a/b"},
    "regex": {"path_regex": "/{n}/[a-z]+/b"},
    "prefix": {"path_prefix": "/{n}/a"},
    "method": {"path_prefix": "/{n}", "methods": ["POST"]},
    "header": {"path_prefix": "/{n}", "headers": {"x-tier": "gold"}},
    "model": {"path_prefix": "/{n}", "model": ["gpt-4"]},
    "model prefix": {"path_prefix": "/{n}", "model": ["gpt*"]},
}
_PAIRS = list(combinations_with_replacement(_KINDS, 2))


def test_explained_route_wins_for_each_pair_of_conditions(kind: Kind) -> None:
    """Each pair has two routes, a request that matches both, and one request for each condition that it lacks."""
    routes: Fleet = {}
    requests: list[Request] = []
    for number, (one, other) in enumerate(_PAIRS):
        for place, name in enumerate((one, other)):
            match = json.loads(json.dumps(_KINDS[name]).replace("{n}", f"p{number}"))
            routes[f"r{number}-{place}"] = {"match": match}
        requests += _variants(f"p{number}")
    matching = _compare(kind, routes, requests)
    contested = {frozenset(_numbered(rule.route) for rule in rules) for rules in matching if len(rules) > 1}
    pairs = {number for numbers in contested for number in numbers}
    print(f"\n{kind}: {len(_PAIRS)} pairs of kinds, {len(requests)} requests, {len(pairs)} pairs contested")
    assert pairs == set(range(len(_PAIRS)))


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 500), *(pytest.param(seed, 1500, marks=pytest.mark.nightly) for seed in range(1, 5))]
)
def test_random_requests_take_the_explained_route(kind: Kind, seed: int, count: int) -> None:
    draw = random.Random(seed)
    routes = {f"r{number:02}": {"match": _match(draw)} for number in range(_ROUTES)}
    matching = _compare(kind, routes, [_request(draw, routes) for _ in range(count)])
    contested = [rules for rules in matching if len(rules) > 1]
    pairs = {frozenset((rules[0].route, rule.route)) for rules in contested for rule in rules[1:]}
    print(f"\n{kind}: {count} requests, {len(contested)} matched by several rules, {len(pairs)} pairs of rules")
    assert len(contested) > count // 10


def test_unusual_requests_take_the_explained_route(kind: Kind) -> None:
    """Repeated headers, unusual methods, characters that a path should not contain."""
    tiers = {"once": "a", "other": "b", "joined": "a,b", "spaced": "a, b"}
    routes: dict[str, Any] = {
        name: {"match": {"path": "/tier", "headers": {"x-tier": value}}} for name, value in tiers.items()
    }
    routes |= {
        "one": {"match": {"path_regex": "/v1/.x"}},
        "more": {"match": {"path_regex": "/v1/.+x"}},
        "purge": {"match": {"path": "/m", "methods": ["PURGE", "TRACE", "FOO"]}},
    }
    twice = [("host", "a.net"), ("x-tier", "a"), ("X-Tier", "b")]
    requests = [Request("GET", "/tier", twice), Request("GET", "/tier", [*twice, ("x-tier", "a")])]
    requests += [Request(name, "/m", {"host": "a.net"}) for name in ("PURGE", "TRACE", "FOO", "GET", "PROPFIND")]
    requests += [Request("GET", f"/v1/{odd}x", {"host": "a.net"}) for odd in "\"'<>`{}|^\\[]()*,;"]
    _compare(kind, routes, requests)


def test_escaped_characters_take_the_explained_route(kind: Kind) -> None:
    routes: dict[str, Any] = {
        "one": {"match": {"path_regex": "/r/a.b"}},
        "some": {"match": {"path_regex": "/r/[^/:]{2}"}},
        "many": {"match": {"path_regex": "/r/(:|@|\\*)+"}},
        "last": {"match": {"path_regex": "/r/.*A"}},
        "root": {"match": {"path": "/"}},
    }
    paths = ["/r/a%zzb", "/r/%", "/r/%4", "/r/a%0Ab", "/r/a%25b", "/r/a%2541b", "/r/%c3%a4", "/r/ab", "/r/%E4b"]
    paths += ["/", "//", "/./"]
    for i, c in enumerate("!$&'()*+,;=:@"):
        routes |= {f"e{i}": {"match": {"path": f"/e/{c}"}}, f"p{i}": {"match": {"path_prefix": f"/p/a{c}"}}}
        for written in (c, f"%{ord(c):02X}", f"%{ord(c):02x}", f"%25{ord(c):02X}", f"%%{ord(c):02X}"):
            paths += [f"/e/{written}", f"/p/a{written}", f"/p/a{written}/x", f"/p/a{written}x"]
            paths += [f"/r/a{written}b", f"/r/{written}b", f"/r/{written}{c}", f"/r/{written}A"]
    _compare(kind, routes, [Request("GET", path, {"host": "a.net"}) for path in paths])


def _compare(kind: Kind, routes: dict[str, Any], requests: list[Request]) -> list[list[Rule]]:
    """Return the rules that match each request, after comparing the answers of the proxy with `explain`."""
    answering = {name: {**route, "respond": {"status": 200, "body": name}} for name, route in routes.items()}
    fleet: Fleet = {"version": 1, "listeners": {"gateway": {"bind": bind()}}, "routes": answering, "pools": {}}
    with running(kind, fleet) as gateway:
        listener = _listener(fleet, gateway.proxy.directory)
        answers = gateway.send_load(len(requests), 1, lambda number: requests[number]).result(300).responses
    rendered = rendered_version(kind)
    version = parse_version(rendered) if rendered else target(kind).versions[0]
    explained = [explain(listener, _message(request), kind, version) for request in requests]
    expected = [_answer(item.winner, item.refusal.status if item.refusal else 404) for item in explained]
    actual = [_answer(None, item.status) if item.status != 200 else item.text for item in answers]
    disagreements = [
        (request.method, request.path, request.headers, request.body, f"explained {one}", f"answered {other}")
        for request, one, other in zip(requests, expected, actual, strict=True)
        if one != other
    ]
    assert disagreements == []
    return [[candidate.rule for candidate in item.matched] for item in explained]


def _answer(winner: Rule | None, status: int) -> str:
    return winner.route if winner else f"status {status}"


def _listener(fleet: Fleet, directory: Path) -> Listener:
    diagnostics = Diagnostics()
    loaded = load([str(write_fleet(directory, fleet))], diagnostics)
    assert loaded is not None, list(diagnostics)
    return loaded.compiled.topology.listeners[0]


def _message(request: Request) -> Message:
    pairs = request.headers.items() if isinstance(request.headers, Mapping) else request.headers
    headers = tuple((name.lower(), value) for name, value in pairs)
    host = next(value for name, value in headers if name == "host")
    path, _, query = request.path.partition("?")
    return Message(request.method, host, path, headers, request.body, query)


def _numbered(route: str) -> int:
    return int(route.removeprefix("r").partition("-")[0])


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _variants(first: str) -> Iterator[Request]:
    headers = {"host": f"h{first}.example.com", "x-tier": "gold", "x-model": "gpt-4"}
    yield Request("POST", f"/{first}/a/b", headers)
    yield Request("GET", f"/{first}/a/b", headers)
    yield Request("POST", f"/{first}/a/b/c", headers)
    yield Request("POST", f"/{first}/x/b", headers)
    yield Request("POST", f"/{first}x/a/b", headers)
    for name, value in (("host", "x.example.com"), ("host", "other.net"), ("x-tier", "silver"), ("x-model", "gpt-5")):
        yield Request("POST", f"/{first}/a/b", {**headers, name: value})
    plain = {name: value for name, value in headers.items() if name != "x-model"}
    yield Request("POST", f"/{first}/a/b", {**plain, "content-type": _JSON}, b'{"model": "gpt-4"}')
    yield Request("POST", f"/{first}/a/b", plain)


def _request(draw: random.Random, routes: dict[str, Any]) -> Request:
    path = _written(draw, _matching(draw, routes) if draw.random() < 0.6 else _path(draw))
    query = draw.choice(
        ["", "", "", "?", "?x=/v1/chat", "?a=b&c=%zz", f"?model={draw.choice(_NAMED)}", "?a=1&model=gpt-%34"]
    )
    headers = {"host": _host(draw)}
    for name, values in _HEADERS.items():
        if draw.random() < 0.4:
            headers[name] = draw.choice([*values, *values, "else"])
    method, body = draw.choice(_METHODS), b""
    if draw.random() < 0.3:
        headers["x-model"] = draw.choice(_NAMED[:-1])
    if method != "GET" and draw.random() < 0.5:
        headers["content-type"] = _JSON
        body = draw.choice([json.dumps({"model": draw.choice(_NAMED)}).encode(), b"{}", b"[1]", b'{"model": 5}', b"x"])
    return Request(method, path + query, headers, body)


def _host(draw: random.Random) -> str:
    host = draw.choice([*_HOSTS, "x.a.eu.example.com"])
    return draw.choice([host, host, host, host.upper(), f"{host}:8443", f"{host}."])


def _path(draw: random.Random) -> str:
    segments = [draw.choice(_SEGMENTS) for _ in range(draw.randint(0, 3))]
    return "/" + "/".join(segments) + (draw.choice(["", "", "/"]) if segments else "")


def _matching(draw: random.Random, routes: dict[str, Any]) -> str:
    match = draw.choice(list(routes.values()))["match"]
    path = match.get("path") or match.get("path_prefix") or _path(draw)
    return str(path) + draw.choice(["", "", "/", "x", "/7", "/chat"])


def _written(draw: random.Random, path: str) -> str:
    """Return the path, or a similar one, as a client may write it."""
    ways = [path] * 5
    ways.append("".join(f"%{ord(c):02X}" if c != "/" and draw.random() < 0.4 else c for c in path))
    ways.append("".join(f"%{ord(c):02x}" if draw.random() < 0.2 else c for c in path))
    ways.append(path.replace("/", draw.choice(["//", "/./", "/x/../", "/%2e/", "/.%2E/", "///", "/../"]), 1))
    ways.append(
        path
        + draw.choice(["/.", "/..", "/../..", "//..", "/...", "%2f", "%2F..", "%5c", "%00", "%", "%zz", "%2", "%20"])
    )
    ways.append(path.replace("/", draw.choice(["//../", "/%2f/", "/a/b/../", "/%3f/", "/%25/", "/%c3%a4/"])))
    written = draw.choice(ways)
    return written if written.startswith("/") else f"/{written}"


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _match(draw: random.Random) -> dict[str, Any]:
    """Return a match of short words from short lists, so that many matches overlap."""
    match: dict[str, Any] = {}
    if draw.random() < 0.3:
        match["hosts"] = draw.sample([*_HOSTS, *_PATTERNS], draw.randint(1, 2))
    way = draw.choice(["path", "path_prefix", "path_prefix", "path_prefix", "path_regex", ""])
    if way == "path_regex":
        match[way] = draw.choice(_REGEXES)
    elif way:
        match[way] = _path(draw)
    if draw.random() < 0.3:
        match["methods"] = draw.sample(_METHODS, draw.randint(1, 2))
    if draw.random() < 0.3:
        names = draw.sample(list(_HEADERS), draw.randint(1, 2))
        match["headers"] = {name: draw.choice(_HEADERS[name]) for name in names}
    if draw.random() < 0.3:
        match["model"] = draw.sample(_MODELS, draw.randint(1, 2))
    return match

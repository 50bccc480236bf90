"""A proxy takes each free text of a fleet literally, with any characters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbctl.ir.header_text import unknown_words
from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas

VALUES = (
    "a; return 200 x;", "a}", "{", "}", '"', "'", '"; return 200 x; #', "'; x", "\\", "a\\", '\\"', "\\n", "\\x41",
    "`id`", "#", "a #b", "$x", "${x}", "$host", "$(id)", "$1", "%", "%h", "%%", "%25", "%[env(HOME)]", "%[lua.f]",
    "%REQ(:path)%", "%START_TIME%", "{{7*7}}", "{% include 'x' %}", "include /etc/passwd", "~a", "~*a", "=",
    "!", "default",
    "hostnames", "volatile", "-flag", "--flag", "-m", "-i", "a,b", "a  b", "@x", "*", "^a$", "a|b", "(", "[",
    "]", "<", "?",
    "str(x)", "if TRUE", "unless", "|| TRUE", "x" * 1024,
)  # fmt: skip
"""Header values: printable ASCII, and text with a meaning in one of the three languages."""
BODIES = (
    *VALUES, " a ", "a\nb", "\ta\n\n", "a\nlisten evil\n", "}}\nssl_engine x;\nhttp{", '{"error": {"code": "gone"}}',
    "é✓", "a\\\nb", "x" * 2000,
)  # fmt: skip
MODELS = ("claude-opus-4-8[1m]", "@cf/meta/llama-3.1-8b", "日本語 (7B)", "é✓", "a&b=c~d", "m" * 255)
"""Names of models as clients send them, in addition to `VALUES`."""
PATHS = (
    "/a;b", "/a'b", "/$x", "/$(id)", "/a&b", "/a,b", "/a!", "/~a", "/*", "/a=b", "/a:b", "/(a)", "/-m", "/a+b", "/@a",
    "/a.b", "/$host/x", "/='",
)  # fmt: skip
REGEXES = {
    "/v[0-9]+/x": ("/v12/x", "/v/x"),
    "/a{2,3}/.*": ("/aa/x", "/a/x"),
    "/(chat|embed)(?:/.*)?": ("/chat/x", "/chatter"),
    r"/a\.b": ("/a.b", "/aXb"),
    "/[;'()$&]+": ("/;'($)&", "/x"),
    '/a["#]?b': ("/ab", "/aXb"),
    r"/\$x;\}?": ("/$x;", "/x;"),
    r"/[^/]+\s?/end$": ("/any/end", "/a/b/end"),
}
"""Maps an expression to a path that it matches, and a path that it does not match."""


def _routes(**routes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"everything": {"respond": {"status": 404, "body": "none"}}, **routes}


def _fleet(replica: Replica, routes: dict[str, dict[str, Any]]) -> Fleet:
    return {**fleet_of(pool_of([replica])), "routes": routes}


def _wrong(gateway: Gateway, paths: dict[str, str]) -> list[str]:
    """Return path → body for responses that differ from the expected ones."""
    got = {path: gateway.get(path) for path in paths}
    return [
        f"{path}: {got[path].status} {got[path].body!r}"
        for path, text in paths.items()
        if got[path].body != text.encode()
    ]


def test_response_body_is_exact(kind: Kind) -> None:
    routes = {
        f"b{i}": {"match": {"path": f"/{i}"}, "respond": {"status": 200, "body": body}} for i, body in enumerate(BODIES)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**routes))) as gateway:
        assert _wrong(gateway, {f"/{i}": body for i, body in enumerate(BODIES)}) == []


def test_model_name_is_matched_exactly(kind: Kind) -> None:
    names = [*(value for value in VALUES if "*" not in value and len(value) < 256), *MODELS]
    routes = {
        f"m{i}": {"match": {"path": "/", "model": [name]}, "respond": {"status": 200, "body": f"m{i}"}}
        for i, name in enumerate(names)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**routes))) as gateway:
        for i, name in enumerate(names):
            text = name.encode().decode("latin-1")
            assert gateway.get("/", {"x-model": text}).text == f"m{i}", name
            for other in (text[:-1], f"{text}x", f"x{text}", text.swapcase()):
                assert gateway.get("/", {"x-model": other}).text in {"none", f"m{_index(names, other)}"}, other
            if kind != "nginx":
                body = json.dumps({"model": name}, ensure_ascii=False).encode()
                assert gateway.post("/", body, {"content-type": "application/json"}).text == f"m{i}", name


def _index(names: list[str], text: str) -> int:
    encoded = [name.encode().decode("latin-1") for name in names]
    return encoded.index(text) if text in encoded else -1


def test_header_is_set_to_its_exact_value(kind: Kind) -> None:
    values = [value for value in VALUES if not unknown_words(value)]
    routes = {
        f"h{i}": {
            "match": {"path": f"/{i}"},
            "pool": "pool",
            "headers": {"request": {"set": {"x-asked": value}}, "response": {"set": {"x-answered": value}}},
        }
        for i, value in enumerate(values)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**routes))) as gateway:
        answers = [gateway.get(f"/{i}") for i in range(len(values))]
    seen = [seen.header("x-asked") for seen in replica.seen]
    assert [(value, got) for value, got in zip(values, seen, strict=True) if value != got] == []
    answered = [answer.header("x-answered") for answer in answers]
    assert [(value, got) for value, got in zip(values, answered, strict=True) if value != got] == []


def test_header_matches_only_its_value(kind: Kind) -> None:
    routes = {
        f"m{i}": {"match": {"headers": {"x-match": value}}, "respond": {"status": 200, "body": f"{i}"}}
        for i, value in enumerate(VALUES)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**routes))) as gateway:
        got = [gateway.get("/", {"x-match": value}).text for value in VALUES]
        others = [gateway.get("/", {"x-match": value}).text for value in ("a", "x", "A}", "aXb", "id", "")]
    assert [(value, body) for i, (value, body) in enumerate(zip(VALUES, got, strict=True)) if body != f"{i}"] == []
    assert others == ["none"] * 6


def _sent(name: str, value: str) -> dict[str, str]:
    return {"x-pin": value} if name == "header" else {"cookie": f"a=b; pin={value}; c=d"}


@pytest.mark.parametrize(("name", "key"), [("header", "x-pin"), ("cookie", "pin")])
def test_pin_matches_only_its_value(kind: Kind, name: str, key: str) -> None:
    values = [value for value in VALUES if name == "header" or (not set(value) & set(' ",;\\') and len(value) < 257)]
    pins = [{name: key, "equals": value, "pool": "pinned"} for value in values]
    with replicas("drawn", "pinned") as (drawn, pinned):
        pools = {"pool": pool_of([drawn]), "pinned": pool_of([pinned])}
        fleet = fleet_of(pools["pool"], route={"pin": pins}, pools=pools)
        with running(kind, fleet) as gateway:
            got = [(value, gateway.get("/", _sent(name, value)).replica) for value in values]
            others = [gateway.get("/", _sent(name, value)).replica for value in ("a", "aXb", "id", "A}")]
    assert [value for value, replica in got if replica != "pinned"] == []
    assert others == ["drawn"] * 4


def test_path_and_prefix_match_exactly(kind: Kind) -> None:
    exact = {
        f"e{i}": {"match": {"path": path}, "respond": {"status": 200, "body": f"exact {i}"}}
        for i, path in enumerate(PATHS)
    }
    prefix = {
        f"p{i}": {"match": {"path_prefix": f"/p{path}"}, "respond": {"status": 200, "body": f"prefix {i}"}}
        for i, path in enumerate(PATHS)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**exact, **prefix))) as gateway:
        expected = {path: f"exact {i}" for i, path in enumerate(PATHS)}
        for i, path in enumerate(PATHS):
            expected |= {
                f"{path}x": "none",
                f"/p{path}": f"prefix {i}",
                f"/p{path}/x": f"prefix {i}",
                f"/p{path}x": "none",
            }
        assert _wrong(gateway, expected) == []


def test_regex_matches_the_whole_path(kind: Kind) -> None:
    routes = {
        f"r{i}": {"match": {"path_regex": regex}, "respond": {"status": 200, "body": f"{i}"}}
        for i, regex in enumerate(REGEXES)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**routes))) as gateway:
        expected = {}
        for i, (right, wrong) in enumerate(REGEXES.values()):
            expected |= {right: f"{i}", wrong: "none", f"/before{right}": "none", f"{right}?x=1": f"{i}"}
        assert _wrong(gateway, expected) == []


def test_rewritten_prefix_is_exact(kind: Kind) -> None:
    routes = {
        f"w{i}": {"match": {"path_prefix": f"/p{i}"}, "pool": "pool", "rewrite": {"path_prefix": path}}
        for i, path in enumerate(PATHS)
    }
    with replicas("a") as (replica,), running(kind, _fleet(replica, _routes(**routes))) as gateway:
        got = [(path, gateway.get(f"/p{i}/x?q=1")) for i, path in enumerate(PATHS)]
    assert [
        (path, answer.body) for path, answer in got if not answer.ok or answer.json["path"] != f"{path}/x?q=1"
    ] == []

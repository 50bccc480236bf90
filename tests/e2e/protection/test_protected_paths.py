"""A protected route next to an open one: no spelling of its path or host bypasses it."""

from __future__ import annotations

import re

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import bind, fleet_of
from tests.support.processes.shared import shared, shared_replicas

_AUTH = {"api_keys": {"file": "keys"}, "forward_tenant": "x-tenant"}
_FILES = {"keys": "sk-abc: acme\n"}
_RESERVED = "!$&'()*+,;=:@"
"""Reserved characters that a path of the fleet may contain."""
_WRITTEN = (
    "/admin",
    "/admin/x",
    "//admin/x",
    "/%61dmin/x",
    "/admin%2fx",
    "/x/../admin",
    "/x/%2e%2e/admin",
    "/./admin",
    "/admin/%zz",
    "/%zz/../admin/x",
    "/admin/%",
    "/admin/%00",
    "/x%00/../admin",
)


def test_no_spelling_of_a_path_bypasses_the_key(kind: Kind) -> None:
    with shared_replicas("a") as (a,):
        admin = {"match": {"path_prefix": "/admin"}, "pool": "pool", "auth": _AUTH}
        with shared(kind, fleet_of([a], routes={"admin": admin}), files=_FILES) as gateway:
            statuses = {path: gateway.get(path).status for path in _WRITTEN}
        assert {path: status for path, status in statuses.items() if status not in (400, 401)} == {}
        assert a.requests == 0


def test_escaped_reserved_character_bypasses_no_match(kind: Kind) -> None:
    """Servers read `%3A` as `:`, so the check of the key must do so too."""
    matches = {
        **{f"exact{i}": {"path": f"/exact/a{c}b"} for i, c in enumerate(_RESERVED)},
        **{f"prefix{i}": {"path_prefix": f"/prefix/a{c}b"} for i, c in enumerate(_RESERVED)},
        **{f"literal{i}": {"path_regex": f"/literal/a{re.escape(c)}b"} for i, c in enumerate(_RESERVED)},
        "class": {"path_regex": f"/class/a[{re.escape(_RESERVED)}]b"},
        "others": {"path_regex": "/others/a[^b]b"},
        "lines": {"path_regex": "/lines/.*"},
        "root": {"path": "/"},
        "words": {"path_regex": r"/words/a\Wb"},
    }
    routes = {name: {"match": match, "pool": "pool", "auth": _AUTH} for name, match in matches.items()}
    paths = [
        f"/{way}/a{written}b{rest}"
        for way in ("exact", "prefix", "literal", "class", "others", "lines", "words")
        for rest in (("", "/c") if way == "prefix" else ("",))
        for c in _RESERVED
        for written in (c, f"%{ord(c):02X}", f"%{ord(c):02x}")
    ]
    paths += ["/lines/%0Ax", "/lines/x%0a", "/lines/%0D%0A", "/others/a%0Ab", "/words/a%0ab", "/others/a%25b"]
    paths += ["/prefix/a:b/%0A", "/prefix/a:b/x%0Ay", "/prefix/a%3ab/%0d%0ax"]
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=routes), files=_FILES) as gateway:
        statuses = {path: gateway.get(path).status for path in paths}
        assert {path: status for path, status in statuses.items() if status != 401} == {}
        assert {gateway.get(path).status for path in ("/", "//", "////", "/.//", "/%2f", "/x/..//")} <= {400, 401}
        assert a.requests == 0
        assert {gateway.get(path).status for path in ("/exact/aab", "/exact/a:b%0A", "/literal/a:b%0a")} == {200}


def test_escaped_prefix_is_rewritten_or_refused(kind: Kind) -> None:
    routes = {
        f"r{i}-{number}": {"match": {"path_prefix": f"/{i}{c}{number}"}, "pool": "pool", "rewrite": {"path_prefix": to}}
        for i, c in enumerate(_RESERVED)
        for number, to in enumerate(("/new", "/"))
    }
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=routes)) as gateway:
        for i, c in enumerate(_RESERVED):
            for written in (c, f"%{ord(c):02X}", f"%{ord(c):02x}"):
                for number, to in enumerate(("/new", "/")):
                    answers = [gateway.get(f"/{i}{written}{number}{rest}") for rest in ("", "/x%3a:?q=%3A")]
                    right = [to, f"{to.rstrip('/')}/x%3a:?q=%3A"]
                    results = [answer.json["path"] if answer.ok else answer.status for answer in answers]
                    assert results == right or (results == [400, 400] and written != c and kind != "envoy"), written


@pytest.mark.parametrize("host", ["sec.example.com", "SEC.example.com", "sec.example.com.", "sec.example.com:80"])
def test_no_spelling_of_a_host_bypasses_the_key(kind: Kind, host: str) -> None:
    with shared_replicas("a") as (a,):
        guarded = {"match": {"hosts": ["sec.example.com"]}, "pool": "pool", "auth": _AUTH}
        with shared(kind, fleet_of([a], routes={"guarded": guarded}), files=_FILES) as gateway:
            assert gateway.get(headers={"host": host}).status == 401
        assert a.requests == 0


def test_tenant_cannot_be_forged_on_a_listener_without_keys(kind: Kind) -> None:
    with shared_replicas("a") as (a,):
        admin = {"listeners": ["b"], "match": {"path_prefix": "/admin"}, "pool": "pool", "auth": _AUTH}
        fleet = fleet_of([a], listeners={"b": {"bind": bind()}}, routes={"admin": admin})
        with shared(kind, fleet, files=_FILES) as gateway:
            assert gateway.get(headers={"x-tenant": "acme"}).ok
        assert a.seen[0].header("x-tenant") is None

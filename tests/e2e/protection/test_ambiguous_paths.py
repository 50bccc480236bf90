"""Every proxy returns 400 for a path that two servers could read differently; every other path arrives unchanged.

The path that the proxy compares with its routes and the path that the replica gets must be the same. Otherwise an open
route accepts a request, and the replica serves a protected one.
"""

from __future__ import annotations

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of
from tests.support.processes.shared import shared, shared_replicas

_AUTH = {"api_keys": {"file": "keys"}}
_ROUTES = {
    "admin": {"match": {"path_prefix": "/admin"}, "pool": "pool", "auth": _AUTH},
    "exact": {"match": {"path": "/open/exact"}, "pool": "pool"},
    "tilde": {"match": {"path_prefix": "/~user"}, "pool": "pool", "auth": _AUTH},
    "marks": {"match": {"path_prefix": "/a.b_c"}, "pool": "pool", "auth": _AUTH},
    "word": {"match": {"path_regex": "/admin-[a-z]+/.*"}, "pool": "pool", "auth": _AUTH},
}
_FILES = {"keys": "sk-abc: acme\n"}
_SEGMENTS = ("//open", "/open//x", "/open/x//", "/%2fopen", "/open%2f/x", "/open/%2F%2f", "//host/open", "//")
_DOTS = (
    *("/admin/../open", "/open/../admin", "/./open", "/open/.", "/open/..", "/open/./x", "/..", "/."),
    *("/admin/%2e%2e/open", "/admin/%2E./open", "/admin/.%2e/open", "/open/%2e", "/open%2F%2E%2e"),
    *("/admin%2f..%2fopen", "/admin/..%2fopen", "/admin/..%2Fopen", "/open%2f..", "/open/..%2f"),
    *("/open/..;/admin", "/open/..;a=b/admin", "/open/..%3b/admin", "/open/.;/x", "/open/%2e%2e;/admin", "/open/..;"),
)
_BYTES = (
    *("/open\\..\\admin", "/open/..\\admin", "/open%5cx", "/open/%5C", "/admin\\x"),
    *("/open/%00", "/open%00/x", "/open/%zz", "/open/%", "/open/%4", "/open/%u002e", "/open/%%"),
    *("/%61dmin", "/open/%41", "/open/%4f", "/open/%5a", "/open/%30", "/open/%7A"),
    *("/open/\xc3\xa9", "/open/\xff", "/open#x", "/open/x#/../admin", "/open/?#x", "/open\x7f"),
)
_ABSOLUTE = ("http://h/admin/../open", "http://h//open", "http://h/open/..;/admin")
_PLAIN = (
    *("/open", "/open/", "/open?", "/open?x=/../admin", "/open/?/../admin", "/open??//", "/open?a=%zz&b=%61"),
    *(
        "/open/...",
        "/open/..x",
        "/open/x..",
        "/open/.x",
        "/open/.well-known/x",
        "/open/x.;y",
        "/open/-_.~",
        "/open/Qwen2%2E5%2D7B%5fx",
        "/open/%2ex",
        "/open/x%2e",
    ),
    *(
        "/open/%20x%C3%A9",
        "/open/%25",
        "/open/%252e%252e/admin",
        "/open/%7e%7E",
        "/open/a%3Ab%40%2B+:@",
        "/open/;a=b/x",
    ),
    *("/open/a%0ab", '/open/{a}|"b"<c>^`', "/open/models/org%252Fname"),
)


def test_ambiguous_path_is_refused(kind: Kind) -> None:
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy,
    ):
        paths = (*_SEGMENTS, *_DOTS, *_BYTES, *_ABSOLUTE)
        statuses = {path: proxy.get(path, {"host": "h"}).status for path in paths}
        assert {path: status for path, status in statuses.items() if status != 400} == {}
        assert a.requests == 0


def test_refusal_of_an_ambiguous_path_gives_the_reason(kind: Kind) -> None:
    with shared_replicas("a") as (a,), shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy:
        answer = proxy.get("/open//x", {"host": "h"})
    error = {"message": "the path is ambiguous", "type": "bad_request", "param": None, "code": "bad_request"}
    assert answer.json == {"error": error}


def test_unambiguous_path_arrives_unchanged(kind: Kind) -> None:
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy,
    ):
        answers = {path: proxy.get(path) for path in _PLAIN}
        assert {path: answer.status for path, answer in answers.items() if not answer.ok} == {}
        assert [seen.path for seen in a.seen] == list(_PLAIN)


def test_escaped_slash_separates_segments(kind: Kind) -> None:
    """nginx and HAProxy forward it as written, Envoy as a slash: every server that decodes paths reads the same."""
    path = "/v1/models/meta-llama%2FLlama-3"
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy,
    ):
        assert (proxy.get(path).status, proxy.get("/admin%2fx").status, proxy.get("/open%2fexact").status) == (
            200,
            401,
            200,
        )
        assert a.seen[0].path in (path, path.replace("%2F", "/"))


def test_escaped_marks_match_as_unescaped(kind: Kind) -> None:
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy,
    ):
        paths = (
            "/~user",
            "/%7Euser/x",
            "/%7euser",
            "/admin-x/y",
            "/admin%2Dx/y",
            "/a.b_c",
            "/a%2Eb%5Fc",
            "/a%2eb%5fc/x",
        )
        assert {path: proxy.get(path).status for path in paths} == dict.fromkeys(paths, 401)
        assert a.requests == 0


def test_absolute_target_arrives_in_origin_form(kind: Kind) -> None:
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy,
    ):
        assert proxy.get("http://h/open?q", {"host": "h"}).ok
        assert proxy.get("http://h/admin", {"host": "h"}).status == 401
    assert (a.seen[0].path, a.seen[0].header("host")) == ("/open?q", "h")


@pytest.mark.parametrize("length", [2_000, 5_000])
def test_long_path_is_matched_to_its_end(kind: Kind, length: int) -> None:
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], routes=_ROUTES), files=_FILES) as proxy,
    ):
        assert proxy.get("/open/" + "a/" * (length // 2)).ok
        assert proxy.get("/admin/" + "a/" * (length // 2) + "../" * (length // 8)).status == 400
    assert a.requests == 1

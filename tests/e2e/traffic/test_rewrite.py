"""A rewrite replaces the matched prefix by whole segments, and the host; the rest of the URL is unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import replicas


def _route(prefix: str, wanted: str) -> dict[str, Any]:
    return {"match": {"path_prefix": prefix}, "rewrite": {"path_prefix": wanted}, "pool": "pool"}


_ROUTES = {
    "longer": _route("/a/", "/models/chat/"),
    "bare": _route("/b", "/x"),
    "nothing": _route("/c/d/", "/"),
    "odd": _route("/e+(f)/", "/$1.y(z)/"),
}

_PATHS = [
    ("/a/b", "/models/chat/b"),
    ("/a/b/c?q=1&r=%2F", "/models/chat/b/c?q=1&r=%2F"),
    ("/a/", "/models/chat/"),
    ("/a/a/", "/models/chat/a/"),
    ("/b", "/x"),
    ("/b?q", "/x?q"),
    ("/b/", "/x/"),
    ("/b/y%20z", "/x/y%20z"),
    ("/b/b", "/x/b"),
    ("/bb/y", "/bb/y"),
    ("/c/d/e", "/e"),
    ("/c/d/", "/"),
    ("/c/d", "/"),
    ("/c/d?q=1", "/?q=1"),
    ("/c/d/e?next=/c/d/", "/e?next=/c/d/"),
    ("/e+(f)/g", "/$1.y(z)/g"),
    ("/elsewhere/a/b", "/elsewhere/a/b"),
]


def test_prefix_is_replaced_by_whole_segments(kind: Kind) -> None:
    with replicas("a") as pool, running(kind, fleet_of(pool, routes=_ROUTES)) as gateway:
        paths = [(path, gateway.get(path).json["path"]) for path, _ in _PATHS]
    assert paths == _PATHS


def test_access_log_has_the_path_of_the_client(kind: Kind) -> None:
    gone = {"gone": {"match": {"path": "/gone"}, "respond": {"status": 410}}}
    paths = ["/a/b", "/bb/y", "/c/d/e", "/gone"]
    with replicas("a") as pool, running(kind, fleet_of(pool, routes=_ROUTES | gone)) as gateway:
        for path in paths:
            gateway.get(f"{path}?q=1")
        gateway.get("/a//b")
        lines = gateway.access_log(len(paths) + 1)
    assert [line["path"] for line in lines] == [*paths, "/a//b"]


@pytest.mark.parametrize("wanted", ["/x/", "/x"])
def test_root_prefix_is_prepended(kind: Kind, wanted: str) -> None:
    route = {"rewrite": {"path_prefix": wanted}}
    with replicas("a") as pool, running(kind, fleet_of(pool, route=route)) as gateway:
        paths = [gateway.get(path).json["path"] for path in ("/", "/y", "/y/z?q=1")]
    assert paths == ["/x/", "/x/y", "/x/y/z?q=1"]


def test_encoded_prefix_is_rewritten_or_refused(kind: Kind) -> None:
    """Matched decoded, it is not present literally: the replica must not get a path that the rewrite should hide."""
    with replicas("a") as (a,), running(kind, fleet_of([a], routes=_ROUTES)) as gateway:
        statuses = {gateway.get(path).status for path in ("/%62/y", "/x/../b/y", "//b/y", "/b%2Fy")}
    assert statuses <= {200, 400}
    assert {seen.path for seen in a.seen} <= {"/x/y", "/x%2Fy"}


def test_host_is_replaced_only_for_the_replica(kind: Kind) -> None:
    route = {"match": {"hosts": ["api.example.com"]}, "rewrite": {"host": "models.internal"}}
    with replicas("a") as pool, running(kind, fleet_of(pool, route=route)) as gateway:
        load = gateway.load(20, 2, Request(path="/v1?x=1", headers={"host": f"api.example.com:{gateway.port}"}))
        assert gateway.get(headers={"host": "models.internal"}).status == 404
    load.assert_no_failure()
    hosts = [[value for name, value in answer.json["headers"] if name.lower() == "host"] for answer in load.responses]
    assert hosts == [["models.internal"]] * 20
    assert {answer.json["path"] for answer in load.responses} == {"/v1?x=1"}


def test_host_and_path_stay_without_a_rewrite(kind: Kind) -> None:
    with replicas("a") as pool, running(kind, fleet_of(pool)) as gateway:
        answer = gateway.get("/v1/a%20b?x=%41&y", {"host": "api.example.com:8080"})
    assert ["Host", "api.example.com:8080"] in [[name.title(), value] for name, value in answer.json["headers"]]
    assert answer.json["path"] == "/v1/a%20b?x=%41&y"

"""A protected route beside an open one for everything: no way of writing its path or its host leads past it."""

from __future__ import annotations

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.fleet import bind, fleet_of, running
from tests.e2e.support.replicas import replicas

_AUTH = {"api_keys": {"file": "keys"}, "forward_tenant": "x-tenant"}
_FILES = {"keys": "sk-abc: acme\n"}
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


def test_however_a_path_is_written_nobody_comes_in_without_a_key(kind: Kind) -> None:
    with replicas("a") as (a,):
        admin = {"match": {"path_prefix": "/admin"}, "pool": "pool", "auth": _AUTH}
        with running(kind, fleet_of([a], routes={"admin": admin}), files=_FILES) as gateway:
            statuses = {path: gateway.get(path).status for path in _WRITTEN}
        assert {path: status for path, status in statuses.items() if status not in (400, 401)} == {}
        assert a.requests == 0


@pytest.mark.parametrize("host", ["sec.example.com", "SEC.example.com", "sec.example.com.", "sec.example.com:80"])
def test_however_a_host_is_written_nobody_comes_in_without_a_key(kind: Kind, host: str) -> None:
    with replicas("a") as (a,):
        guarded = {"match": {"hosts": ["sec.example.com"]}, "pool": "pool", "auth": _AUTH}
        with running(kind, fleet_of([a], routes={"guarded": guarded}), files=_FILES) as gateway:
            assert gateway.get(headers={"host": host}).status == 401
        assert a.requests == 0


def test_a_tenant_cannot_be_forged_on_a_listener_that_knows_no_keys(kind: Kind) -> None:
    with replicas("a") as (a,):
        admin = {"listeners": ["b"], "match": {"path_prefix": "/admin"}, "pool": "pool", "auth": _AUTH}
        fleet = fleet_of([a], listeners={"b": {"bind": bind()}}, routes={"admin": admin})
        with running(kind, fleet, files=_FILES) as gateway:
            assert gateway.get(headers={"x-tenant": "acme"}).ok
        assert a.seen[0].header("x-tenant") is None

"""Variables in the headers that a route sets: the values for the replica and the client, for any request."""

from __future__ import annotations

from typing import Any

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.replicas import Seen, replicas

_ALL = "{client_ip}|{request_id}|{tenant}|{host}|{listener}|{route}|{pool}"
_ODD = '%[src] %REQ(a)% $x "{client_ip}" {"a": 1}'
_RULES: dict[str, Any] = {
    "request": {"set": {"x-all": _ALL, "x-tenant-id": "{tenant}", "x-odd": _ODD}},
    "response": {"set": {"x-all": _ALL, "x-tenant-id": "{tenant}"}},
}  # fmt: skip
_KEYS = {"keys": "sk-1: acme\n"}
_FORGED = [("x-tenant-id", "root"), ("X-Tenant-Id", "root"), ("x_tenant_id", "root"), ("x-tenant_id", "root")]


def _smuggled(seen: Seen) -> list[str]:
    return [value for name, value in seen.headers if name.lower().replace("_", "-") == "x-tenant-id"]


def test_variables_are_not_taken_from_clients(kind: Kind) -> None:
    routes = {
        "keyed": {"match": {"path_prefix": "/keyed"}, "pool": "pool", "headers": _RULES,
                  "auth": {"api_keys": {"file": "keys"}}},
        "pinned": {"match": {"path": "/pinned"}, "split": {"pool": 1, "other": 1}, "headers": _RULES,
                   "pin": [{"header": "x-v", "equals": "2", "pool": "other"}], "rewrite": {"host": "models.internal"}},
    }  # fmt: skip
    with replicas("a", "b") as (a, b):
        a.behave(headers=(("x-tenant-id", "of the replica"),))
        pools = {"other": pool_of([b])}
        with running(
            kind, fleet_of([a], route={"headers": _RULES}, routes=routes, pools=pools), files=_KEYS
        ) as gateway:
            open_ = gateway.get("/x", [("host", "h.example"), *_FORGED])
            keyed = gateway.get("/keyed", [("host", "h.example"), ("authorization", "Bearer sk-1"), *_FORGED])
            refused = gateway.get("/keyed", [("host", "h.example"), *_FORGED])
            pinned = gateway.get("/pinned", [("host", "h.example"), ("x-v", "2")])
            drawn = [gateway.get("/pinned", [("host", "h.example")]) for _ in range(8)]
    ids = [answer.header("x-request-id") for answer in (open_, keyed, refused, pinned)]
    expected = [
        f"127.0.0.1|{ids[0]}||h.example|gateway|everything|pool",
        f"127.0.0.1|{ids[1]}|acme|h.example|gateway|keyed|pool",
        f"127.0.0.1|{ids[3]}||h.example|gateway|pinned|other",
    ]
    assert [a.seen[0].header("x-all"), a.seen[1].header("x-all"), b.seen[0].header("x-all")] == expected
    assert [answer.header("x-all") for answer in (open_, keyed, pinned)] == expected
    assert [_smuggled(seen) for seen in (a.seen[0], a.seen[1])] == [[], ["acme"]]
    assert [answer.header_list("x-tenant-id") for answer in (open_, keyed)] == [[], ["acme"]]
    assert refused.status == 401
    assert (refused.header("x-all") or "").startswith(f"127.0.0.1|{ids[2]}||h.example|gateway|keyed|")
    assert a.seen[0].header("x-odd") == '%[src] %REQ(a)% $x "127.0.0.1" {"a": 1}'
    pools_named = [(answer.header("x-all") or "").rpartition("|")[2] for answer in drawn]
    assert {str(seen.header("x-all")).rpartition("|")[2] for seen in b.seen} == {"other"}
    assert {str(seen.header("x-all")).rpartition("|")[2] for seen in a.seen} == {"pool"}
    assert set(pools_named) <= {"pool", "other"}
    assert pools_named.count("other") == len(b.seen) - 1

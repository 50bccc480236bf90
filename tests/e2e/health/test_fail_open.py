"""`fail_open`: a pool whose active checks all fail is used as if none had failed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.checks import OFTEN
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_BALANCES: dict[str, dict[str, Any]] = {
    "least": {"algorithm": "least_request"},
    "random": {"algorithm": "random"},
    "hash": {"algorithm": "hash", "hash": {"key": {"header": "x-session"}}},
}


def _pool(*members: Replica, drained: Replica | None = None, **keys: Any) -> dict[str, Any]:
    entries = [entry(item, **({"drain": True} if item is drained else {})) for item in members]
    active = {**OFTEN, "healthy_threshold": 1, "http": {"path": "/health"}}
    return {"replicas": entries, "health": {"active": active, "fail_open": True}, **keys}


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_pool_whose_checks_all_fail_is_used(kind: Kind) -> None:
    """A drained replica still gets nothing, and a fallback pool comes first."""
    with replicas("a", "b", "drained", "other") as (a, b, drained, other):
        pools = {name: _pool(a, b, drained, drained=drained, balance=balance) for name, balance in _BALANCES.items()}
        pools |= {"gone": _pool(drained, drained=drained), "other": {"replicas": [entry(other)]}}
        routes: dict[str, Any] = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
        routes["spare"] = {"match": {"path_prefix": "/spare"}, "pool": "least", "fallback": "other"}
        with running(kind, {**fleet_of([a]), "routes": routes, "pools": pools}) as gateway:

            def served(path: str) -> set[str | None]:
                answers = [gateway.get(path, {"x-session": f"s{number}"}) for number in range(40)]
                return {item.replica if item.ok else str(item.status) for item in answers}

            eventually(lambda: served("/least") == {"a", "b"}, pause=0.2)
            for item in (a, b):
                item.behave(health=500)
            checks = a.checks
            eventually(lambda: a.checks > checks + 6 and served("/spare") == {"other"}, pause=0.2)
            for name in _BALANCES:
                eventually(lambda path=f"/{name}": served(path) == {"a", "b"}, pause=0.2)  # type: ignore[misc]
            assert served("/gone") == {"503"}
            b.behave(health=200)
            eventually(lambda: all(served(f"/{name}") == {"b"} for name in _BALANCES), pause=0.2)

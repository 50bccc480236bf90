"""A session that a replica names in its response stays on that replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind, is_rendered_for
from tests.support.processes.checks import TCP
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_HEADER = "mcp-session-id"
_KEEPS = pytest.mark.parametrize(
    "kind", [*(["nginx"] if is_rendered_for("nginx", "1.29.6") else []), "haproxy", "envoy"]
)


def _fleet(pool: list[Replica], **more: Any) -> Fleet:
    keys = {"affinity": {"header": _HEADER}, "health": TCP, "balance": {"algorithm": "round_robin"}}
    return fleet_of(pool_of(pool, **keys), **more)


def _sessions(gateway: Gateway, pool: list[Replica], count: int = 12) -> dict[str, tuple[str, str]]:
    """Begin sessions. Return the session as the client knows it → its replica, and its name there."""
    begun: dict[str, tuple[str, str]] = {}
    for number in range(count):
        for replica in pool:
            replica.behave(headers=((_HEADER, f"{replica.name}.{number}.session"),))
        answer = gateway.post("/mcp", b"{}")
        (session,) = answer.header_list(_HEADER)
        assert answer.replica is not None
        begun[session] = (answer.replica, f"{answer.replica}.{number}.session")
    for replica in pool:
        replica.behave(headers=())
        replica.forget()
    return begun


def _assert_kept(gateway: Gateway, pool: list[Replica], sessions: Mapping[str, tuple[str, str]]) -> None:
    for _ in range(3):
        for session, (home, _name) in sessions.items():
            assert gateway.post("/mcp", b"{}", {_HEADER: session}).replica == home
    for replica in pool:
        names = {name for home, name in sessions.values() if home == replica.name}
        assert {seen.header(_HEADER) for seen in replica.seen} == names


@_KEEPS
def test_session_stays_with_the_replica_that_named_it(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, _fleet(pool)) as gateway:
        sessions = _sessions(gateway, pool)
        assert {home for home, _ in sessions.values()} == {"a", "b", "c"}
        _assert_kept(gateway, pool, sessions)
        unknown = [gateway.post("/mcp", b"{}", {_HEADER: "unknown"}) for _ in range(6)]
        assert {answer.replica for answer in unknown} == {"a", "b", "c"}
        assert all(answer.header(_HEADER) is None for answer in unknown)
        assert {seen.header(_HEADER) for replica in pool for seen in replica.seen} >= {"unknown"}


@_KEEPS
def test_session_stays_in_a_split(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool:
        fleet = _fleet(
            pool[:2], routes={"everything": {"match": {"path_prefix": "/"}, "split": {"pool": 1, "other": 0}}}
        )
        fleet["pools"]["other"] = pool_of(pool[2:])
        with running(kind, fleet) as gateway:
            _assert_kept(gateway, pool[:2], _sessions(gateway, pool[:2], 6))


@_KEEPS
def test_session_of_a_dead_replica_goes_to_another(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool)) as gateway:
        sessions = _sessions(gateway, pool, 4)
        session, (home, name) = next(iter(sessions.items()))
        dead, other = sorted(pool, key=lambda replica: replica.name != home)
        dead.refuse()
        eventually(lambda: gateway.post("/mcp", b"{}", {_HEADER: session}).replica == other.name)
        assert other.seen[-1].header(_HEADER) == name


def test_client_does_not_learn_replicas_from_envoy() -> None:
    with replicas("a", "b") as pool, running("envoy", _fleet(pool)) as gateway:
        session = next(iter(_sessions(gateway, pool, 1)))
        assert str(pool[0].port) not in session
        named, _, token = session.rpartition(".")
        for forged in (f"{named}.{'0' * 16}", f"{named}.{token.upper()}", f"{named}.{token}.{token}", f".{token}", "."):
            assert gateway.post("/mcp", b"{}", {_HEADER: forged}).ok, forged


@pytest.mark.skipif(is_rendered_for("nginx", "1.29.6"), reason="this nginx learns sessions")
def test_older_nginx_warns_that_it_keeps_no_session() -> None:
    with replicas("a") as pool, running("nginx", _fleet(pool)) as gateway:
        assert "warning LB162 pools.pool.affinity.header" in gateway.messages
        assert gateway.get().ok

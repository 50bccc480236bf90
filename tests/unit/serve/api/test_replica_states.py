"""Replica states of a large fleet that are requested only occasionally."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbctl.control.check_thresholds import CheckState
from lbctl.ir.topology import Topology
from lbctl.serve.api import pool_rows, replica_states
from lbctl.serve.api.replica_states import ReplicaSources, ReplicaStates
from tests.support import api
from tests.support.control import pool


def _states(replicas: int, **parts: Any) -> ReplicaStates:
    whole = SimpleNamespace(topology=Topology((), (), (pool(replicas),)))
    served = SimpleNamespace(composed=SimpleNamespace(whole=whole))
    saving = SimpleNamespace(note_state=lambda *_: None)
    live = SimpleNamespace(served=served)
    return ReplicaStates(cast(ReplicaSources, SimpleNamespace(live=live, saving=saving, **parts)))


def test_large_fleet_is_unknown_before_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    row, pauses = api.pool("pool", api.REPLICA), list[float]()

    async def in_turns(steps: Generator[object, None, None]) -> tuple[None, float]:
        list(steps)
        return None, 3.0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(replica_states, "in_turns", in_turns)
    monkeypatch.setattr(pool_rows, "pools_in_parts", lambda *_: iter([row]))
    monkeypatch.setattr(ReplicaStates, "_live", lambda *_: pool_rows.LiveState())
    monkeypatch.setattr(replica_states.asyncio, "sleep", sleep)
    states = _states(501)
    assert (states.newest(), states.unseen()) == ((), "the states of the replicas are not known yet")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(states.watch())
    assert (states.newest(), states.unseen()) == ((row,), "")
    assert pauses == [15.0], "a look of 3 s"
    assert _states(500).unseen() == ""


def test_proxies_are_asked_sooner_after_a_connection_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = CheckState(out=False, since=0.0, at=0.0, passed=True), CheckState(out=True, since=0.0, at=0.0)
    connections, hastened = {("pool", "a"): good}, list[int]()
    looks = iter([good, bad, bad, good])

    async def in_turns(steps: Generator[object, None, None]) -> tuple[None, float]:
        steps.close()
        connections["pool", "a"] = next(looks)
        return None, 0.0

    async def sleep(_seconds: float) -> None:
        if len(hastened) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(replica_states, "in_turns", in_turns)
    monkeypatch.setattr(replica_states.asyncio, "sleep", sleep)
    states = _states(
        2,
        replica_checks=SimpleNamespace(connections=connections),
        traffic=SimpleNamespace(pace=SimpleNamespace(hasten=lambda: hastened.append(1))),
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(states.watch())
    assert list(looks) == [], "it failed and returned"

"""The picker sends no requests to a replica whose engine stops, until it makes progress."""

from __future__ import annotations

import pytest

from tests.support.processes.control import ControlPlane
from tests.support.processes.engines import engines
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import PICK, picked
from tests.support.processes.waiting import at_rest, eventually

_GENERATE = Request("POST", "/v1/completions?n=100", timeout=100.0)
_TELEMETRY = {"sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]}
_QUESTION = {"pool": "pool", "session": "new", "body": "{}"}


def _reasons(control: ControlPlane) -> dict[str, str]:
    """Return replica → why the picker does not choose it; empty if it may."""
    return {item["name"]: item["reason"] for item in control.explain_pick(_QUESTION)["candidates"]}


def _state(control: ControlPlane, name: str) -> str:
    (pool,) = control.get("pools")["pools"]
    (row,) = (item for item in pool["replicas"] if item["name"] == name)
    return str(row["state"])


@pytest.mark.parametrize(
    "kind", ["haproxy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "nginx"))]
)
def test_stopped_engine_gets_no_requests_until_it_makes_progress(kind: str) -> None:
    """Deep health ejects it after a minute: the detour does not change its state."""
    health = {"deep": {"stalled_after": "1m"}}
    with engines("a", "b", "c") as members:
        pool = pool_of(members, balance=dict(PICK), telemetry=_TELEMETRY, health=health)
        with picked(kind, pool) as (control, client):
            with client.steady(20, _GENERATE) as load:
                eventually(lambda: min(item.requests for item in members) > 30)
                members[0].wedged = True
                eventually(lambda: "probably stalled" in _reasons(control)["a"])
                reasons = _reasons(control)
                assert (reasons["b"], reasons["c"], _state(control, "a")) == ("", "", "in")
                count = at_rest(lambda: members[0].requests)
                members[0].wedged = False
                eventually(lambda: not _reasons(control)["a"])
                eventually(lambda: members[0].requests > count + 3)
            load.load.assert_no_failure()

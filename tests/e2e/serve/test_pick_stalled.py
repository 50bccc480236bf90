"""The picker sends no requests to a replica whose engine stops, until it makes progress, and proxies get lower weights
for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.processes.all_proxies import haproxy_weights, nginx_weights
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane
from tests.support.processes.edges import Edge
from tests.support.processes.engines import Engine, engines
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


def _state(control: ControlPlane, name: str) -> tuple[str, str]:
    """Return the state of a replica, and the reason."""
    (pool,) = control.get("pools")["pools"]
    (row,) = (item for item in pool["replicas"] if item["name"] == name)
    return row["state"], row["state_reason"]


def _share(kind: str, control: ControlPlane, client: Client, members: Sequence[Engine]) -> float:
    """Return the share of the first replica in the weights that the proxy uses for requests without a pick."""
    if kind == "envoy":
        (envoy,) = control.envoys
        of_address = envoy.weights("pool")
        weights = {item.name: of_address[item.address] for item in members}
    else:
        assert isinstance(client, Edge)
        if kind == "haproxy":
            weights = haproxy_weights(client)
        else:
            upstream = client.config.read_text().partition("upstream pool_pool {")[2].partition("}")[0]
            weights = nginx_weights(upstream.partition("backup")[0], members)
    return weights[members[0].name] / sum(weights.values())


@pytest.mark.parametrize(
    "kind", ["haproxy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "nginx"))]
)
def test_stopped_engine_gets_no_requests_until_it_makes_progress(kind: str) -> None:
    """Deep health alone would eject it after half a minute."""
    health = {"deep": {"stalled_after": "30s"}}
    with engines("a", "b", "c") as members:
        pool = pool_of(members, balance=dict(PICK), telemetry=_TELEMETRY, health=health)
        with picked(kind, pool) as (control, client):
            with client.steady(20, _GENERATE) as load:
                eventually(lambda: min(item.requests for item in members) > 30)
                assert _share(kind, control, client, members) > 0.2
                members[0].wedged = True
                eventually(lambda: _share(kind, control, client, members) < 0.1, timeout=20)
                state, reason = _state(control, "a")
                assert (state, "probably stalled, according to the picker" in reason) == ("ramping", True)
                reasons = _reasons(control)
                assert ("probably stalled" in reasons["a"], reasons["b"], reasons["c"]) == (True, "", "")
                count = at_rest(lambda: members[0].requests)
                members[0].wedged = False
                eventually(lambda: not _reasons(control)["a"])
                eventually(lambda: _share(kind, control, client, members) > 0.2)
                eventually(lambda: members[0].requests > count + 3)
            load.load.assert_no_failure()

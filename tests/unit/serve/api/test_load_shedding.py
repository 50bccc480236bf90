"""Cases in which the status reports that proxies shed requests of a pool."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.serve.api.load_shedding import shedding
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica

_HEALTH = {"active": {"tcp": {}}, "load_shedding": {"min_healthy": "50%"}}
_WHY = "1 of 3 replicas is available, and load_shedding.min_healthy is 50%"


def _shedding(kind: str, states: str, *, route: dict[str, Any] | None = None, **keys: Any) -> str | None:
    members = [replica(name, f"127.0.0.1:{port}") for port, name in enumerate("abc", 10)]
    spare = pool(replica(address="127.0.0.1:20"))
    text = fleet_text(pool(*members, **{"health": _HEALTH, **keys}), route=route, pools={"spare": spare})
    topology = compiled(text).topology
    return shedding(
        next(item for item in topology.pools if item.name == "pool"), topology.routes, {kind}, states.split()
    )


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_pool_sheds_below_its_limit(kind: str) -> None:
    assert _shedding(kind, "in down ejected") == _WHY
    assert _shedding(kind, "in down asleep") == _WHY
    assert _shedding(kind, "in down unknown") is None
    assert _shedding(kind, "in down down", route={"fallback": "spare"}) is None
    assert _shedding(kind, "in down down", health={"load_shedding": {"min_healthy": "50%"}}) is None
    assert _shedding(kind, "in down down", health={"active": {"tcp": {}}}) is None
    assert _shedding("nginx", "in down down") is None


def test_drained_replica_is_unavailable_for_haproxy_alone() -> None:
    assert _shedding("haproxy", "in drained draining") == _WHY
    assert _shedding("envoy", "in drained draining") is None
    assert _shedding("haproxy", "in drained removed") is None

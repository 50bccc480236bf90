"""Which proxy suits a fleet: obstacles are errors, losses are not, and the proxy with the fewest losses is best."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.targets import KINDS
from lbctl.up.proxy_choice import best, suitability
from tests.support.fleets import fleet_of, load_fleet, pool


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_serve_are_not_a_loss(tmp_path: Path, kind: str) -> None:
    checked = pool(health={"active": {"http": {"path": "/health"}}}, slow_start={"window": "30s"})
    loaded = load_fleet(tmp_path, fleet_of(checked))
    assert suitability(loaded, kind).summary == "supports the whole fleet"


def test_model_in_the_body_is_an_obstacle_for_nginx(tmp_path: Path) -> None:
    loaded = load_fleet(tmp_path, fleet_of(route={"match": {"path_prefix": "/v1/", "model": ["m"]}}))
    by_kind = {kind: suitability(loaded, kind) for kind in KINDS}
    (obstacle,) = by_kind["nginx"].obstacles
    position = f"{tmp_path}/fleet.yaml:10:7"
    assert str(obstacle).startswith(f"{position}: error LB971 routes.everything.match.model: nginx reads")
    assert "the route everything would not get their requests" in obstacle.message
    assert by_kind["envoy"].obstacles == by_kind["haproxy"].obstacles == ()
    assert best(by_kind.values()) == by_kind["haproxy"]


def test_missing_protection_is_an_obstacle(tmp_path: Path) -> None:
    (tmp_path / "jwks").write_text('{"keys": []}')
    jwt = {"issuer": "https://example.com", "jwks_file": "jwks", "audiences": ["a"]}
    loaded = load_fleet(tmp_path, fleet_of(route={"auth": {"jwt": jwt}, "retry": {"budget": "20%"}}))
    nginx, haproxy = suitability(loaded, "nginx"), suitability(loaded, "haproxy")
    assert [item.code for item in nginx.obstacles] == ["LB444"]
    assert [item.severity for item in nginx.obstacles] == ["error"]
    assert [item.code for item in nginx.losses] == [item.code for item in haproxy.losses] == ["LB439"]
    assert haproxy.obstacles == ()
    assert haproxy.summary == "supports everything in the fleet except the settings in LB439 (`lbctl rule CODE`)"
    assert best([haproxy, nginx, suitability(loaded, "envoy")]) == suitability(loaded, "envoy")
    assert best([nginx]) is None

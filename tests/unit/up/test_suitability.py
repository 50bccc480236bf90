"""Which proxy suits a fleet: obstacles are errors, losses are not, and the one that says the most is preferred."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.targets import KINDS
from lbctl.targets.load import Loaded, load
from lbctl.up.suitability import best, suitability

FLEET = """\
version: 1
listeners: {{gateway: {{bind: "127.0.0.1:8080"}}}}
routes:
  chat: {{match: {{path_prefix: /v1/{match}}}, pool: llama{route}}}
pools: {{llama: {{replicas: [{{address: "127.0.0.1:9001"}}]{pool}}}}}
"""


def fleet(tmp_path: Path, match: str = "", route: str = "", pool: str = "") -> Loaded:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(match=match, route=route, pool=pool))
    diagnostics = Diagnostics()
    loaded = load([str(file)], diagnostics)
    assert loaded is not None, [str(item) for item in diagnostics]
    return loaded


@pytest.mark.parametrize("kind", KINDS)
def test_what_serve_does_in_place_of_a_proxy_is_no_loss(tmp_path: Path, kind: str) -> None:
    loaded = fleet(tmp_path, pool=", health: {active: {http: {path: /health}}}, slow_start: {window: 30s}")
    assert suitability(loaded, kind).summary == "expresses all of it"


def test_a_model_that_stands_in_the_body_is_an_obstacle_for_nginx(tmp_path: Path) -> None:
    loaded = fleet(tmp_path, match=", model: [m]")
    by_kind = {kind: suitability(loaded, kind) for kind in KINDS}
    (obstacle,) = by_kind["nginx"].obstacles
    assert str(obstacle).startswith(f"{tmp_path}/fleet.yaml:4:44: error LB971 routes.chat.match.model: nginx reads")
    assert "the route chat would not get their requests" in obstacle.message
    assert by_kind["envoy"].obstacles == by_kind["haproxy"].obstacles == ()
    assert best(by_kind.values()) == by_kind["haproxy"]


def test_a_protection_that_a_proxy_lacks_is_an_obstacle_and_anything_else_a_loss(tmp_path: Path) -> None:
    (tmp_path / "jwks").write_text('{"keys": []}')
    jwt = "auth: {jwt: {issuer: https://example.com, jwks_file: jwks, audiences: [a]}}"
    loaded = fleet(tmp_path, route=f", {jwt}, retry: {{budget: 20%}}")
    nginx, haproxy = suitability(loaded, "nginx"), suitability(loaded, "haproxy")
    assert [item.code for item in nginx.obstacles] == ["LB444"]
    assert [item.severity for item in nginx.obstacles] == ["error"]
    assert [item.code for item in nginx.losses] == [item.code for item in haproxy.losses] == ["LB439"]
    assert haproxy.obstacles == ()
    assert haproxy.summary == "expresses all of it but LB439 (`lbctl rule CODE`)"
    assert best([haproxy, nginx, suitability(loaded, "envoy")]) == suitability(loaded, "envoy")
    assert best([nginx]) is None

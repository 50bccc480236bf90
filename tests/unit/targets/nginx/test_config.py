"""One nginx configuration with all features, and the sources of its lines."""

from __future__ import annotations

import pytest

from lbctl.ir.pools import (
    Pool,
)
from lbctl.ir.routes import HeaderRules
from lbctl.targets.features import FEATURES
from lbctl.targets.nginx import TARGET
from tests.support.nginx import replica_at, view_of, view_of_everything


@pytest.mark.parametrize("version", TARGET.versions)
def test_same_view_gives_the_same_bytes(version: tuple[int, ...]) -> None:
    assert TARGET.render(view_of_everything(version)) == TARGET.render(view_of_everything(version))


def test_each_feature_has_a_capability() -> None:
    assert set(TARGET.capabilities) == {feature.id for feature in FEATURES}


@pytest.mark.parametrize("value", ["a $ sign", "no sign"])
def test_each_server_line_belongs_to_its_pool(value: str) -> None:
    """A dollar sign adds a line with a variable above them."""
    main = TARGET.render(
        view_of(Pool("p", (replica_at("a"),)), request_headers=HeaderRules(set=(("x-a", value),)))
    ).main
    lines = main.text.split("\n")
    assert {path[:2] for number, path in main.sources.items() if "server 127" in lines[number - 1]} == {("pools", "p")}


def test_route_without_idle_timeout_gets_the_longest_one() -> None:
    text = TARGET.render(view_of(Pool("p", (replica_at("a"),)), idle_timeout=None)).main.text
    assert "proxy_read_timeout 2073600000ms;" in text

from __future__ import annotations

import pytest
import yaml

from lbctl.model.node import plain_value
from lbctl.targets.features import FEATURES, Feature
from lbctl.targets.usage import cleartext, used
from tests.support.fleet import GROUND, reading
from tests.support.paths import FIXTURES
from tests.support.schema import NAME, choices, keys, leaves, places

FULL = FIXTURES / "full.yaml"
PIN = ("header", "equals", "pool")
PATTERNS = [(feature.id, key) for feature in FEATURES for key in feature.keys]


def features(text: str) -> list[str]:
    """`feature path` of all that the YAML asks for."""
    source, found = reading(text)
    assert source is not None, found
    asked = [(cleartext(feature, path, source.root), path) for feature, path in used(source.root)]
    return [f"{feature.id} {'.'.join(map(str, path))}" for feature, path in asked]


@pytest.mark.parametrize(("feature", "pattern"), PATTERNS, ids=[key for _, key in PATTERNS])
def test_every_pattern_names_a_key_of_the_schema(feature: str, pattern: str) -> None:
    path, _, value = pattern.partition("@")[0].partition("=")
    assert path in keys() | {"defaults"}
    assert not value or value in choices(path)


def test_every_value_of_a_fleet_belongs_to_a_feature() -> None:
    source, _ = reading(FULL.read_text())
    assert source is not None
    told = {path for _, path in used(source.root)}
    document = plain_value(source.root)
    written = {path for leaf in leaves() if leaf[-1] != NAME for path in places(document, leaf)}
    assert len(written) > 250
    assert [path for path in written if not any(path[:length] in told for length in range(1, len(path) + 1))] == []


def test_the_fixture_of_the_schema_asks_for_every_feature_but_other_values_of_a_choice() -> None:
    asked = {line.split(" ")[0] for line in features(FULL.read_text())}
    other = {
        "listener.h2c", "pool.protocol.http2", "pool.protocol.grpc", "pool.balance.round_robin",
        "pool.balance.least_time", "pool.balance.random",
    }  # fmt: skip
    assert {feature.id for feature in FEATURES} - asked == other


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.id)
def test_who_seeks_one_feature_finds_all_that_there_is_of_it(feature: Feature) -> None:
    source, _ = reading(FULL.read_text())
    assert source is not None
    assert used(source.root, {feature.id}) == [item for item in used(source.root) if item[0] == feature]


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("{pool: a}", ["route.pool routes.r.pool"]),
        ("{pool: a, websocket: false, queue_priority: normal}", ["route.pool routes.r.pool"]),
        ("{pool: a, websocket: true}", ["route.pool routes.r.pool", "route.websocket routes.r.websocket"]),
        (
            "{pool: a, timeouts: {request: unlimited, idle: 5s}}",
            ["route.pool routes.r.pool", "route.timeouts.idle routes.r.timeouts.idle"],
        ),
        (
            "{pool: a, pin: [{header: x, equals: y, pool: b}]}",
            ["route.pool routes.r.pool", *(f"route.pin.header routes.r.pin.0.{k}" for k in PIN)],
        ),
        ("{respond: {redirect: https}}", ["route.redirect routes.r.respond.redirect"]),
    ],
)  # fmt: skip
def test_what_a_route_asks_for(route: str, asked: list[str]) -> None:
    assert [line for line in features(f"{GROUND}routes:\n  r: {route}\n") if " routes." in line] == asked


@pytest.mark.parametrize(("value", "feature"), [("http1", "http1"), ("http2", "http2"), ("grpc", "grpc")])
def test_a_value_of_a_choice_is_a_feature_of_its_own(value: str, feature: str) -> None:
    text = f'version: 1\npools: {{p: {{protocol: {value}, replicas: [{{address: "a:1"}}]}}}}\n'
    assert f"pool.protocol.{feature} pools.p.protocol" in features(text)


@pytest.mark.parametrize(
    ("tls", "feature"), [("", "listener.h2c"), (", tls: {certificates: [{certificate: a, key: b}]}", "listener.http2")]
)
def test_http2_without_tls_is_a_feature_of_its_own(tls: str, feature: str) -> None:
    asked = features(f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:80", http2: true{tls}}}}}\n')
    assert f"{feature} listeners.l.http2" in asked


def test_a_default_is_asked_for_by_every_object_that_it_is_laid_under() -> None:
    asked = features(f"{GROUND}defaults: {{pool: {{locality: {{prefer: zone}}}}}}\n")
    assert [line for line in asked if line.startswith("pool.locality")] == [
        "pool.locality pools.a.locality", "pool.locality pools.b.locality",
    ]  # fmt: skip


def test_the_full_fleet_is_yaml_that_others_read_the_same() -> None:
    source, _ = reading(FULL.read_text())
    assert source is not None
    other = yaml.safe_load(FULL.read_text())
    assert plain_value(source.root)["listeners"] == other["listeners"]

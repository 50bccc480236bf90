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
    """Return `feature path` of each use of a feature in the YAML."""
    source, diagnostics = reading(text)
    assert source is not None, diagnostics
    used_features = [(cleartext(feature, path, source.root), path) for feature, path in used(source.root)]
    return [f"{feature.id} {'.'.join(map(str, path))}" for feature, path in used_features]


@pytest.mark.parametrize(("feature", "pattern"), PATTERNS, ids=[key for _, key in PATTERNS])
def test_each_pattern_names_a_key_of_the_schema(feature: str, pattern: str) -> None:
    path, _, value = pattern.partition("@")[0].partition("=")
    assert path in keys() | {"defaults"}
    assert not value or value in choices(path)


def test_each_value_of_a_fleet_belongs_to_a_feature() -> None:
    source, _ = reading(FULL.read_text())
    assert source is not None
    used_paths = {path for _, path in used(source.root)}
    document = plain_value(source.root)
    written = {path for leaf in leaves() if leaf[-1] != NAME for path in places(document, leaf)}
    assert len(written) > 250
    assert [
        path for path in written if not any(path[:length] in used_paths for length in range(1, len(path) + 1))
    ] == []


def test_fixture_of_the_schema_uses_almost_all_features() -> None:
    used_lines = {line.split(" ")[0] for line in features(FULL.read_text())}
    other = {
        "listener.h2c", "pool.protocol.http2", "pool.protocol.grpc", "pool.balance.round_robin",
        "pool.balance.least_time", "pool.balance.random",
    }  # fmt: skip
    assert {feature.id for feature in FEATURES} - used_lines == other


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.id)
def test_uses_of_one_feature_are_complete(feature: Feature) -> None:
    source, _ = reading(FULL.read_text())
    assert source is not None
    assert used(source.root, {feature.id}) == [item for item in used(source.root) if item[0] == feature]


@pytest.mark.parametrize(
    ("route", "expected"),
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
def test_features_of_a_route(route: str, expected: list[str]) -> None:
    assert [line for line in features(f"{GROUND}routes:\n  r: {route}\n") if " routes." in line] == expected


@pytest.mark.parametrize(("value", "feature"), [("http1", "http1"), ("http2", "http2"), ("grpc", "grpc")])
def test_each_value_of_a_choice_is_a_feature(value: str, feature: str) -> None:
    text = f'version: 1\npools: {{p: {{protocol: {value}, replicas: [{{address: "a:1"}}]}}}}\n'
    assert f"pool.protocol.{feature} pools.p.protocol" in features(text)


@pytest.mark.parametrize(
    ("tls", "feature"), [("", "listener.h2c"), (", tls: {certificates: [{certificate: a, key: b}]}", "listener.http2")]
)
def test_http2_without_tls_is_a_separate_feature(tls: str, feature: str) -> None:
    used_lines = features(f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:80", http2: true{tls}}}}}\n')
    assert f"{feature} listeners.l.http2" in used_lines


def test_default_is_used_by_each_object_that_it_applies_to() -> None:
    used_lines = features(f"{GROUND}defaults: {{pool: {{locality: {{prefer: zone}}}}}}\n")
    assert [line for line in used_lines if line.startswith("pool.locality")] == [
        "pool.locality pools.a.locality", "pool.locality pools.b.locality",
    ]  # fmt: skip


def test_other_parsers_read_the_full_fleet_the_same() -> None:
    source, _ = reading(FULL.read_text())
    assert source is not None
    other = yaml.safe_load(FULL.read_text())
    assert plain_value(source.root)["listeners"] == other["listeners"]

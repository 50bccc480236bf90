"""Imports of Envoy's configuration, and the errors for invalid input."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run as command
from lbctl.importer.run import run
from tests.support.importer import SAMPLES, imported

ENVOY = SAMPLES / "envoy"


def test_config_dump_is_read_with_its_dynamic_resources() -> None:
    result, _ = imported("envoy", ENVOY / "ray-config-dump.json")
    fleet = result.draft.fleet
    assert fleet["routes"]["public"] == {"match": {}, "pool": "ray"}
    assert [item["address"] for item in fleet["pools"]["ray"]["replicas"]] == ["10.8.0.1:8000", "10.8.0.2:8000"]


def test_first_route_wins_over_a_later_expression() -> None:
    result, _ = imported("envoy", ENVOY / "sglang-models.yaml")
    routes = [(item["match"], item["pool"]) for item in result.draft.fleet["routes"].values()]
    both = {"path_regex": "/v1/(chat/)?completions", "model": ["llama-70b*"]}
    assert (both, "large") in routes


def test_routes_that_differ_in_a_header_are_both_kept() -> None:
    result, _ = imported("envoy", ENVOY / "aibrix-gateway.yaml")
    assert [item["pool"] for item in result.draft.fleet["routes"].values()] == ["deepseek", "llama"]


def test_aggregate_cluster_is_a_pool_with_a_fallback() -> None:
    result, _ = imported("envoy", ENVOY / "provider-fallback.yaml")
    route = result.draft.fleet["routes"]["v1"]
    assert (route["pool"], route["fallback"]) == ("own", "spare")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("static_resources:\n  listeners:\n  - nam: x\n", ":3:5: error LB980: Envoy would not read this"),
        ("static_resources: {clusters: [{name: a, connect_timeout: 5}]}\n", "error LB980: Envoy would not read this"),
        ("static_resources: {}\n", ":1:1: error LB982: there is no HTTP listener to import"),
        ("a: [\n", "error LB004"),
        ("- a\n", "error LB004"),
    ],
)
def test_invalid_input_is_reported_at_its_position(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(text)
    assert command(["import", "envoy", str(file)]) == 1
    assert message in capsys.readouterr().err.replace(str(file), "")


SOURCES = [file.read_text() for file in sorted(ENVOY.glob("*.yaml"))]


@settings(max_examples=40, deadline=None)
@given(source=st.sampled_from(SOURCES), data=st.data())
def test_import_never_crashes(source: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = source.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        del lines[data.draw(st.integers(0, len(lines) - 1))]
    file = tmp_path_factory.mktemp("fuzz") / "envoy.yaml"
    file.write_text("\n".join(lines))
    diagnostics = Diagnostics()
    result = run("envoy", [str(file)], diagnostics)
    assert result is not None or diagnostics.failed

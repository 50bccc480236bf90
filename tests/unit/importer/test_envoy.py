"""Imports of Envoy's configuration, and the errors for invalid input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run as command
from lbctl.importer.run import run
from tests.support.importer import SAMPLES, envoy_text, imported, imported_text

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
    assert [item.get("pool") for item in result.draft.fleet["routes"].values()] == ["deepseek", "llama", None]


def test_aggregate_cluster_is_a_pool_with_a_fallback() -> None:
    result, _ = imported("envoy", ENVOY / "provider-fallback.yaml")
    route = result.draft.fleet["routes"]["v1"]
    assert (route["pool"], route["fallback"]) == ("own", "spare")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("static_resources:\n  listeners:\n  - nam: x\n", ":3:5: error LB980: invalid Envoy configuration"),
        ("static_resources: {clusters: [{name: a, connect_timeout: 5}]}\n", "error LB980: invalid Envoy configuration"),
        ("static_resources: {}\n", ":1:1: error LB982: the configuration has no HTTP listener to import"),
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


@pytest.mark.slow
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


ANSWER = "direct_response: {status: 403}"
FORWARD = "route: {cluster: c, timeout: 0s}"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("{prefix: /a}, " + ANSWER, "{safe_regex: {regex: '.*x'}}, " + FORWARD, [({"path_regex": ".*x"}, 501)]),
        ("{safe_regex: {regex: '.*x'}}, " + ANSWER, "{prefix: /a}, " + FORWARD, [({"path_prefix": "/a"}, "c")]),
        (
            "{prefix: /a, headers: [{name: x-key, present_match: true, invert_match: true}]}, " + ANSWER,
            "{prefix: /}, " + FORWARD,
            [({}, 501)],
        ),
        (
            "{prefix: /a, query_parameters: [{name: q, present_match: true}]}, " + ANSWER,
            "{prefix: /b}, " + FORWARD,
            [({"path_prefix": "/b"}, "c")],
        ),
    ],
)
def test_answer_without_a_match_closes_later_routes(
    first: str, second: str, expected: list[tuple[dict[str, str], object]], tmp_path: Path
) -> None:
    routes = f"- {{match: {first}}}\n              - {{match: {second}}}\n"
    text = re.sub(r"- match: \{path: /open.*?(?=          http_filters)", routes, envoy_text(), flags=re.DOTALL)
    result, diagnostics = imported_text("envoy", text, tmp_path)
    found = [
        (item["match"], item.get("pool", item.get("respond", {}).get("status")))
        for item in result.draft.fleet["routes"].values()
    ]
    assert [item for item in found if item[1] != 403] == expected
    assert not [item for item in diagnostics if item.code == "LB989"]


QUERY = "query_parameters: [{name: q, present_match: true}]"


@pytest.mark.parametrize(
    ("first", "second", "expected", "misrouted"),
    [
        (f"{{prefix: /a, {QUERY}}}, {FORWARD}", "{prefix: /}", [({"path_prefix": "/a"}, 501), ({}, "c")], 0),
        (f"{{prefix: /a, {QUERY}}}, {FORWARD}", "{prefix: /a}", [({"path_prefix": "/a"}, 501)], 0),
        (
            f"{{prefix: /a, {QUERY}}}, {FORWARD}",
            "{prefix: /a/b}",
            [({"path_prefix": "/a/b"}, "c"), ({"path_prefix": "/a"}, 501)],
            1,
        ),
        (f"{{prefix: /, {QUERY}}}, {FORWARD}", "{prefix: /a}", [({"path_prefix": "/a"}, "c")], 1),
        (
            f"{{prefix: /, {QUERY}}}, {FORWARD}, typed_per_filter_config: {{x: {{'@type': type.googleapis.com/x}}}}",
            "{prefix: /a}",
            [({"path_prefix": "/a"}, 501)],
            0,
        ),
        (
            "{prefix: /a}, route: {cluster: auth}",
            "{safe_regex: {regex: '.*x'}}",
            [({"path_prefix": "/a"}, "auth"), ({"path_regex": ".*x"}, "c")],
            1,
        ),
        (
            "{prefix: /a}, " + FORWARD,
            "{safe_regex: {regex: '.*x'}}",
            [({"path_prefix": "/a"}, "c"), ({"path_regex": ".*x"}, "c")],
            0,
        ),
        (
            f"{{prefix: /, headers: [{{name: x-a, present_match: true}}, {{name: x-b, exact_match: c}}]}}, {FORWARD}",
            "{prefix: /}",
            [({"headers": {"x-b": "c"}}, 501), ({}, "c")],
            0,
        ),
    ],
)
def test_route_with_a_part_of_a_condition_is_closed(
    first: str, second: str, expected: list[tuple[dict[str, object], object]], misrouted: int, tmp_path: Path
) -> None:
    routes = f"- {{match: {first}}}\n              - {{match: {second}, {FORWARD}}}\n"
    text = re.sub(r"- match: \{path: /open.*?(?=          http_filters)", routes, envoy_text(), flags=re.DOTALL)
    result, diagnostics = imported_text("envoy", text, tmp_path)
    found = [
        (item["match"], item.get("pool", item.get("respond", {}).get("status")))
        for item in result.draft.fleet["routes"].values()
    ]
    assert found == expected
    assert [item.severity for item in diagnostics if item.code == "LB989"] == ["error"] * misrouted
    closed = any(item[1] == 501 for item in expected) and "typed_per" not in first
    assert ("# Complete `match`, then replace" in result.text) == closed


@pytest.mark.slow
def test_many_unclear_conditions_leave_each_route_once(tmp_path: Path) -> None:
    unclear = "{prefix: /v1, runtime_fraction: {default_value: {numerator: 1}}}"
    matches = [*[unclear] * 30, *(f"{{prefix: /v1/{number:02}}}" for number in range(30))]
    routes = "".join(f"- {{match: {match}, {FORWARD}}}\n              " for match in matches)
    text = re.sub(r"- match: \{path: /open.*?(?=          http_filters)", f"{routes}\n", envoy_text(), flags=re.DOTALL)
    found = imported_text("envoy", text, tmp_path)[0].draft.fleet["routes"].values()
    assert sorted(item["match"]["path_prefix"] for item in found) == sorted(
        ["/v1", *(f"/v1/{number:02}" for number in range(30))]
    )


def test_virtual_host_is_chosen_before_its_routes(tmp_path: Path) -> None:
    hosts = (
        '- {name: all, domains: ["*", "*.x.example"], routes: [{match: {prefix: /v1}, route: {cluster: c}}]}\n'
        "            - {name: one, domains: [a.x.example], routes: [{match: {prefix: /}, route: {cluster: auth}}]}\n"
    )
    text = re.sub(r"- name: v\n.*?(?=          http_filters)", hosts, envoy_text(), flags=re.DOTALL)
    routes = imported_text("envoy", text, tmp_path)[0].draft.fleet["routes"].values()
    assert [(item["match"], item.get("pool")) for item in routes if "pool" in item] == [
        ({"path_prefix": "/v1"}, "c"),
        ({"hosts": ["a.x.example"]}, "auth"),
    ]

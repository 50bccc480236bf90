"""The built-in GPU table: names, scale, the output of `lbctl gpus`, and the source of each figure."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
import yaml
from click.testing import CliRunner

from lbctl.cli import group
from lbctl.compile.gpus import GPUS
from tests.support.gpus import ACCELERATORS, Result, by_specification, ratio, results, rounded
from tests.support.paths import DATA

NAMES = {
    *("B200", "H200", "GH200", "H100-SXM", "H100-PCIe", "A100-80GB", "A100-40GB", "L40S"),
    *("L4", "A10", "A10G", "T4", "V100", "RTX-4090", "MI300X", "MI325X"),
}
RESULTS = DATA / "gpus"
needs_data = pytest.mark.skipif(
    not RESULTS.is_dir(), reason=f"no tables of MLPerf and specifications in {RESULTS} (LBCTL_REAL_DATA)"
)

AGAINST_H100 = ("B200", "H200", "GH200", "H100-PCIe", "L40S", "MI300X", "MI325X")
AGAINST_L40S = ("L4", "RTX-4090")
BY_SPECIFICATION = {
    "H100-SXM": "H100-SXM",
    "A100-80GB": "A100-80GB-SXM",
    "A100-40GB": "A100-40GB",
    "V100": "V100-SXM2",
    "A10": "A10",
    "A10G": "A10G",
}


@pytest.fixture(scope="module")
def rows() -> list[Result]:
    return results(RESULTS)


def specified(name: str) -> float:
    return 5 * by_specification(RESULTS, BY_SPECIFICATION[name], "A100-80GB-SXM")


def l40s(rows: list[Result]) -> float:
    return specified("H100-SXM") * ratio(rows, "L40S", "H100-SXM", llm=True)[0]


def assert_derived_from(name: str, overall: float, cells: list[float], base: float) -> None:
    gpu = GPUS[name]
    assert gpu.throughput == rounded(base * overall)
    stated = f"{overall:.2f} ({len(cells)} cells, {cells[0]:.2f} to {cells[-1]:.2f}"
    assert stated in gpu.method
    assert f"× {base:.2f}" in gpu.method


def test_the_table_lists_the_promised_gpus_fastest_first() -> None:
    assert set(GPUS) == NAMES
    assert all(name == gpu.name for name, gpu in GPUS.items())
    throughputs = [gpu.throughput for gpu in GPUS.values()]
    assert throughputs == sorted(throughputs, reverse=True)


def test_the_scale_is_an_a100_of_80_gb_at_five() -> None:
    assert GPUS["A100-80GB"].throughput == 5


def test_the_table_is_immutable() -> None:
    with pytest.raises(TypeError):
        GPUS["A10"] = GPUS["T4"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        GPUS["A10"].throughput = 9  # type: ignore[misc]


def test_throughputs_have_at_most_two_significant_digits() -> None:
    assert {gpu.name for gpu in GPUS.values() if gpu.throughput != rounded(gpu.throughput)} == set()


@pytest.mark.parametrize("name", ["A100-80GB", "A100-40GB", "V100", "A10", "A10G"])
def test_the_method_states_a_missing_mlperf_row(name: str) -> None:
    assert "No MLPerf row." in GPUS[name].method


@needs_data
@pytest.mark.parametrize("name", AGAINST_H100)
def test_throughput_follows_from_language_model_rows(name: str, rows: list[Result]) -> None:
    assert_derived_from(name, *ratio(rows, name, "H100-SXM", llm=True), specified("H100-SXM"))


@needs_data
@pytest.mark.parametrize("name", AGAINST_L40S)
def test_throughput_follows_from_other_rows_through_l40s(name: str, rows: list[Result]) -> None:
    assert_derived_from(name, *ratio(rows, name, "L40S", llm=False), l40s(rows))


@needs_data
@pytest.mark.parametrize("name", AGAINST_L40S)
def test_gpus_rated_by_other_rows_have_no_language_model_row(name: str, rows: list[Result]) -> None:
    with pytest.raises(ValueError, match="no benchmark is common"):
        ratio(rows, name, "H100-SXM", llm=True)


@needs_data
def test_t4_throughput_follows_from_its_row_through_l4(rows: list[Result]) -> None:
    t4, l4 = (
        [row.value for row in rows if row.accelerator in ACCELERATORS[name] and row.model == "bert-99"]
        for name in ("T4", "L4")
    )
    assert len(t4) == len(l4) == 1
    of_l4 = l40s(rows) * ratio(rows, "L4", "L40S", llm=False)[0]
    assert GPUS["T4"].throughput == rounded(t4[0] / l4[0] * of_l4)
    ratios = f"{t4[0]:.0f} samples/s on T4 and {l4[0]:.0f} on L4 give {t4[0] / l4[0]:.3f} × {of_l4:.2f}"
    assert ratios in GPUS["T4"].method


@needs_data
@pytest.mark.parametrize("name", BY_SPECIFICATION)
def test_throughput_follows_from_the_specification(name: str) -> None:
    assert GPUS[name].throughput == rounded(specified(name))
    assert name == "A100-80GB" or f"= {specified(name):.2f}" in GPUS[name].method


@needs_data
@pytest.mark.parametrize("name", [name for name in BY_SPECIFICATION if name != "H100-SXM"])
def test_gpus_rated_by_specification_have_no_mlperf_row(name: str, rows: list[Result]) -> None:
    words = {word for row in rows for word in row.accelerator.replace("-", " ").split()}
    assert name.split("-")[0] not in words


def test_json_and_yaml_have_every_field_of_every_gpu() -> None:
    as_json = json.loads(CliRunner().invoke(group, ["gpus", "-o", "json"]).stdout)
    assert as_json == yaml.safe_load(CliRunner().invoke(group, ["gpus", "-o", "yaml"]).stdout)
    assert [row["name"] for row in as_json] == list(GPUS)
    assert all(row.keys() == {"name", "throughput", "memory_gb", "source", "method"} for row in as_json)


def test_the_text_table_has_a_method_below_each_gpu() -> None:
    result = CliRunner().invoke(group, ["gpus"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    source = lines[0].index("SOURCE")
    for gpu in GPUS.values():
        row = next(number for number, line in enumerate(lines) if line.split(" ")[0] == gpu.name)
        assert lines[row].split()[1] == f"{gpu.throughput:g}"
        assert lines[row][source:] == gpu.source
        assert gpu.method.startswith(lines[row + 1].strip())
    assert "\x1b" not in result.stdout
    assert max(map(len, lines)) <= 100


def test_an_unknown_output_format_lists_the_choices() -> None:
    result = CliRunner().invoke(group, ["gpus", "-o", "markdown"])
    assert result.exit_code != 0
    assert "'table', 'json', 'yaml'" in result.output

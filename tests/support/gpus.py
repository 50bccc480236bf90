"""Relative GPU throughput from MLPerf result tables, to check the built-in GPU table.

Reads CSV files with results per accelerator. A pair of GPUs without a common benchmark is a ValueError.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROUNDS = {"v4.1": "mlperf_v4.1_per_accelerator.csv", "v5.1": "mlperf_v5.1_per_accelerator.csv"}
ACCELERATORS = {
    "B200": {"NVIDIA B200-SXM-180GB"},
    "H200": {"NVIDIA H200-SXM-141GB"},
    "GH200": {"NVIDIA GH200 Grace Hopper Superchip 96GB", "NVIDIA GH200 Grace Hopper Superchip 144GB"},
    "H100-SXM": {"NVIDIA H100-SXM-80GB"},
    "H100-PCIe": {"NVIDIA H100-PCIe-80GB"},
    "L40S": {"NVIDIA L40S"},
    "L4": {"NVIDIA L4", "NVIDIA L4-PCIe-24GB"},
    "T4": {"Tesla T4"},
    "RTX-4090": {"NVIDIA GeForce RTX 4090"},
    "MI300X": {
        "AMD Instinct MI300X-NPS1-SPX-192GB-750W",
        "AMD MI300X-NPS1-SPX-192GB-750W",
        "AMD Instinct MI300X 192GB HBM3",
    },
    "MI325X": {"AMD Instinct MI325X 256GB HBM3e"},
}
LLM_PREFIXES = ("llama", "gptj", "mixtral")
BASE = "llama2-70b-99"
"""Model with which other models are compared."""

Cell = tuple[str, str, str, str]


@dataclass(frozen=True)
class Result:
    """One submission: per-accelerator `value`, in the unit of its benchmark cell (round, suite, model, scenario)."""

    division: str
    accelerator: str
    cell: Cell
    value: float
    tuned: bool

    @property
    def model(self) -> str:
        return self.cell[2]


def results(folder: Path) -> list[Result]:
    """Return every row of both rounds. Raises OSError if a table is missing."""
    return [_result(name, row) for name, file in ROUNDS.items() for row in _rows(folder / file)]


def ratio(rows: Iterable[Result], gpu: str, base: str, *, llm: bool) -> tuple[float, list[float]]:
    """Return the throughput of `gpu` relative to `base`, and the sorted ratios of the cells.

    The throughput is the geometric mean over models of the geometric mean over cells of the ratios of medians. Raises
    ValueError if the two have no closed benchmark in common.
    """
    rows = [row for row in rows if _counts(row) and row.model.startswith(LLM_PREFIXES) is llm]
    mine, theirs = _medians(rows, gpu), _medians(rows, base)
    by_model: dict[str, list[float]] = defaultdict(list)
    for cell in mine.keys() & theirs.keys():
        by_model[cell[2]].append(mine[cell] / theirs[cell])
    if not by_model:
        raise ValueError(f"no benchmark is common to {gpu} and {base}")
    overall = statistics.geometric_mean(statistics.geometric_mean(values) for values in by_model.values())
    return overall, sorted(value for values in by_model.values() for value in values)


def speed(rows: Sequence[Result], gpu: str, model: str) -> tuple[float, float, float, int]:
    """Compare a GPU with a model to llama2-70b on H100-SXM in the same round, suite and scenario.

    Returns the geometric mean of the cells' ratios of medians, the lowest and the highest submission over the other's
    median, and the number of cells.
    """
    base = {(*cell[:2], cell[3]): value for cell, value in _medians(_of(rows, BASE), "H100-SXM").items()}
    ratios, single = [], []
    for cell, median in _medians(_of(rows, model), gpu).items():
        other = base[(*cell[:2], cell[3])]
        ratios.append(median / other)
        single += [
            row.value / other
            for row in rows
            if _counts(row) and row.cell == cell and row.accelerator in ACCELERATORS[gpu]
        ]
    return statistics.geometric_mean(ratios), min(single), max(single), len(ratios)


def _of(rows: Iterable[Result], model: str) -> list[Result]:
    return [row for row in rows if _counts(row) and row.model == model]


def by_specification(folder: Path, row: str, base: str) -> float:
    """Return √(bandwidth ratio × dense TFLOPS ratio) of two rows of the specifications, or the bandwidth ratio alone if
    a row has no TFLOPS."""
    with (folder / "gpu_specs.csv").open(newline="") as lines:
        table = {line["gpu"]: line for line in csv.DictReader(lines)}
    bandwidth, tflops = (
        [table[name][column] for name in (row, base)] for column in ("mem_bandwidth_gb_s", "bf16_or_fp16_dense_tflops")
    )
    by_bandwidth = float(bandwidth[0]) / float(bandwidth[1])
    return math.sqrt(by_bandwidth * float(tflops[0]) / float(tflops[1])) if tflops[0] else by_bandwidth


def rounded(value: float) -> float:
    """Return the number with two significant digits if it is at least 1, else with one."""
    return float(f"{value:.2g}" if value >= 1 else f"{value:.1g}")


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


def _result(round_name: str, row: dict[str, str]) -> Result:
    value = row.get("per_accelerator") or row.get("result_per_accelerator") or "nan"
    cell = (round_name, row.get("suite", ""), row["model"], row["scenario"])
    tuned = "reference" not in row.get("system", "") and row.get("weight_dtypes") != "fp32"
    return Result(row["category"], row["accelerator"].strip(), cell, float(value), tuned)


def _counts(row: Result) -> bool:
    scenario = row.cell[3] in ("Offline", "Server")
    return row.division == "closed" and row.tuned and scenario and not row.model.endswith("99.9")


def _medians(rows: Iterable[Result], gpu: str) -> dict[Cell, float]:
    by_cell: dict[Cell, list[float]] = defaultdict(list)
    for row in rows:
        if row.accelerator in ACCELERATORS[gpu]:
            by_cell[row.cell].append(row.value)
    return {cell: statistics.median(values) for cell, values in by_cell.items()}

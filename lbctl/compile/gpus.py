"""The built-in table of relative GPU throughput, which determines how replicas on different GPUs share traffic.

Throughput is relative (A100-80GB = 5) and was derived once from published results. Each figure is listed with its
source and method. This module contains only data. It does not read files or estimate values for GPUs that it does not
list. It also contains the names that drivers and Kubernetes labels use for the GPUs in the table. Other names are
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

SCALE = (
    "Relative throughput of one GPU with a language model: A100-80GB = 5. Figures have at most two significant "
    "digits. The model, its precision and the model server can change them by a third or more, so measure your own "
    "throughput and set it under `gpus:`. None of the sources has results for the A100. Therefore, every figure "
    "depends on a ratio of specifications, either of H100-SXM to A100 or of the GPU itself to A100."
)

MLPERF_RULE = (
    "MLPerf rule: result per accelerator in MLPerf Inference v4.1 and v5.1 "
    "(github.com/mlcommons/inference_results_v4.1 and _v5.1), closed division, scenarios Offline and Server. The 99.9 "
    "% accuracy targets (mostly the same runs as the 99 % targets), the reference implementation and fp32 weights are "
    "excluded. A cell is a combination of round, suite, model and scenario that has results for both GPUs. The ratio "
    "of a cell is the ratio of the two GPUs' medians over all submitters. The figure is the geometric mean over the "
    "cells of each model, and then over the models. A model counts as a language model if its name begins with llama, "
    "gptj or mixtral. Submitters choose the precision and the software, and the ratio is not corrected for this "
    "choice. For language models, v5.1 lists fp4 on B200 and fp8 on the other GPUs; v4.1 does not list the precision."
)

SPECIFICATION_RULE = (
    "Specification rule: 5 × √(memory bandwidth ratio × dense FP16/BF16 TFLOPS ratio) to A100-80GB "
    "(SXM: 2039 GB/s, 312 TFLOPS, from citsjtu2020/LLM-Prof). The rule does not account for fp8, fp4 or software. The "
    "rule differs from MLPerf by up to a factor of three (B200: 27 instead of 41; L4: 1.2 instead of 0.8; T4: 0.9 "
    "instead of 0.3)."
)

_MLPERF = "MLPerf Inference v4.1, v5.1"
_MLPERF_4 = "MLPerf Inference v4.1"
_LLM_PROF = "specifications: citsjtu2020/LLM-Prof"


@dataclass(frozen=True)
class Gpu:
    """A GPU type."""

    name: str
    """The name used in a fleet."""
    throughput: float
    """Throughput on a scale where A100-80GB = 5."""
    memory_gb: float | None
    """Memory per GPU, in GB."""
    source: str
    """Source of the figures."""
    method: str
    """How the capacity was calculated from the figures."""


_TABLE = (
    Gpu(
        "B200",
        41,
        180,
        _MLPERF,
        "MLPerf rule for language models, relative to H100-SXM: 3.63 (8 cells, 3.09 to 4.42) × 11.41. "
        "In v5.1, B200 ran fp4 and H100-SXM ran fp8; expect less if you use fp8. MLPerf lists 180 GB of memory "
        "(specifications: 192).",
    ),
    Gpu(
        "H200",
        13,
        141,
        _MLPERF,
        "MLPerf rule for language models, relative to H100-SXM: 1.15 (12 cells, 0.99 to 1.42) × 11.41.",
    ),
    Gpu(
        "GH200",
        13,
        96,
        _MLPERF_4,
        "MLPerf rule for language models, relative to H100-SXM: 1.18 (6 cells, 0.89 to 1.44) × 11.41. "
        "The figure combines the rows for the 96 GB and 144 GB variants; separately, 96 GB gives 11 and 144 GB "
        "gives 14. The memory size is the smaller variant's.",
    ),
    Gpu(
        "MI325X",
        12,
        256,
        "MLPerf Inference v5.1",
        "MLPerf rule for language models, relative to H100-SXM: 1.06 (2 cells, 1.04 to 1.09, "
        "llama2-70b only) × 11.41. Rows of systems that mix MI325X with MI300X are excluded.",
    ),
    Gpu(
        "H100-SXM",
        11,
        80,
        _LLM_PROF,
        "Specification rule: 5 × √(3350/2039 × 989/312) = 11.41. MLPerf has results for H100-SXM but "
        "not for A100; this ratio connects all measured GPUs to the scale.",
    ),
    Gpu(
        "MI300X",
        10,
        192,
        _MLPERF,
        "MLPerf rule for language models, relative to H100-SXM: 0.91 (4 cells, 0.80 to 0.99, "
        "llama2-70b only) × 11.41. Rows of systems that mix MI300X with MI325X are excluded.",
    ),
    Gpu(
        "H100-PCIe",
        5.5,
        80,
        _MLPERF_4,
        "MLPerf rule for language models, relative to H100-SXM: 0.48 (4 cells, 0.37 to 0.66) × 11.41. "
        "The lower cells are the llama2-70b results of one submitter; gptj alone gives 7.0. The specifications are "
        "unverified and not used.",
    ),
    Gpu("A100-80GB", 5, 80, "the scale", "5 by definition, for the SXM version. No MLPerf row."),
    Gpu(
        "A100-40GB",
        4.4,
        40,
        "specifications: astroC86/gpu-datasheet",
        "Specification rule: 5 × √(1555/2039 × 312/312) = 4.37. No MLPerf row.",
    ),
    Gpu(
        "RTX-4090",
        2.8,
        24,
        _MLPERF,
        "MLPerf rule for other models, relative to L40S: 1.01 (2 cells, 0.95 to 1.08, retinanet int8 "
        "only) × 2.74. All language model rows of RTX-4090 are in the open division and not comparable.",
    ),
    Gpu(
        "L40S",
        2.7,
        48,
        _MLPERF,
        "MLPerf rule for language models, relative to H100-SXM: 0.24 (6 cells, 0.15 to 0.36) × 11.41. "
        "The ratio is lowest for llama2-70b over eight GPUs on PCIe, and highest for gptj. The llama3.1-8b cell "
        "compares vLLM with TensorRT-LLM.",
    ),
    Gpu(
        "V100",
        2.1,
        16,
        "specifications: collected notes (unverified)",
        "Specification rule: 5 × √(900/2039 × 125/312) = 2.10 for SXM2, which also exists with 32 GB; PCIe (112 "
        "TFLOPS) gives 2.0. FP16 without BF16. No MLPerf row.",
    ),
    Gpu(
        "A10",
        1.7,
        24,
        f"{_LLM_PROF}; astroC86/gpu-datasheet",
        "Specification rule: 5 × √(600/2039 × 125/312) = 1.72. No MLPerf row.",
    ),
    Gpu(
        "A10G",
        1.5,
        24,
        "specifications: AWS g5 card, unverified",
        "Bandwidth alone: 5 × 600/2039 = 1.47. The bandwidth is unverified, and no TFLOPS figure is "
        "used because published figures disagree. No MLPerf row.",
    ),
    Gpu(
        "L4",
        0.8,
        24,
        _MLPERF,
        "MLPerf rule for other models (vision, bert, whisper, image generation), relative to L40S, the "
        "nearest GPU with language model rows: 0.30 (9 cells, 0.27 to 0.36) × 2.74. L4 has no language model rows.",
    ),
    Gpu(
        "T4",
        0.3,
        16,
        _MLPERF_4,
        "bert-99 Offline: 381 samples/s on T4 and 964 on L4 give 0.395 × 0.81, the L4 figure. T4 has a "
        "single row, in the open division (NVIDIA's TensorRT implementation with default settings), so the figure "
        "may be low.",
    ),
)

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {gpu.name: gpu for gpu in sorted(_TABLE, key=lambda gpu: (-gpu.throughput, gpu.name))}
)
"""The table, by name, with the fastest GPU first."""


_DRIVER_NAMES = (
    (r"\bB200\b", "B200"),
    (r"\bGH200\b", "GH200"),
    (r"\bH200\b", "H200"),
    (r"\bH100 PCIe\b", "H100-PCIe"),
    (r"\bH100 80GB HBM3\b", "H100-SXM"),
    (r"\bA100[- ].*80GB\b", "A100-80GB"),
    (r"\bA100[- ].*40GB\b", "A100-40GB"),
    (r"\bL40S\b", "L40S"),
    (r"\bA10G\b", "A10G"),
    (r"\bA10\b", "A10"),
    (r"\bL4\b", "L4"),
    (r"\bT4\b", "T4"),
    (r"\bV100\b", "V100"),
    (r"\bRTX 4090$", "RTX-4090"),
    (r"\bMI300X\b", "MI300X"),
    (r"\bMI325X\b", "MI325X"),
)
"""Maps a pattern for a driver's GPU name to the name in `lbctl gpus`."""


def gpu_named(name: str) -> str:
    """Return the table's name for the GPU that a driver calls `name`, or an empty string."""
    return next((ours for pattern, ours in _DRIVER_NAMES if re.search(pattern, name)), "")


def gpu_of_label(value: str, own: Iterable[str] = ()) -> str:
    """Return the GPU type in a label's value, or an empty string.

    The value is a name from the table, a name from the fleet (`own`), or the driver's name with each space replaced by
    `-`, as written by NVIDIA's and AMD's labellers. A GPU slice (MIG) does not count as the GPU.
    """
    for name in (*own, *GPUS):
        if name.lower() == value.lower():
            return name
    return "" if "MIG" in value else gpu_named(re.sub("[-_]", " ", value))

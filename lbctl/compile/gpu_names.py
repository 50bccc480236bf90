"""The names that drivers, and labels of Kubernetes, give to the GPUs of lbctl's table; other names stay unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lbctl.compile.gpus import GPUS

_TABLE = (
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
"""Maps a pattern of the driver's name of a GPU to its name in `lbctl gpus`."""


def gpu_named(name: str) -> str:
    """Return the table's name of the GPU that a driver calls `name`, or an empty string."""
    return next((ours for pattern, ours in _TABLE if re.search(pattern, name)), "")


def gpu_of_label(value: str, own: Iterable[str] = ()) -> str:
    """Return the type of GPU that the value of a label names, or an empty string.

    The value is a name of the table or of the fleet itself (`own`), or what NVIDIA's and AMD's labellers write: the
    driver's name, with `-` for each space. A slice of a GPU (MIG) is not the GPU.
    """
    for name in (*own, *GPUS):
        if name.lower() == value.lower():
            return name
    return "" if "MIG" in value else gpu_named(re.sub("[-_]", " ", value))

"""Metrics of replicas and GPUs: metrics pages in, signals with a unit and an age out. No I/O, no clock.

A new kind of source is a table in a module of this package, one line here, and its name in `lbctl.model.telemetry`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from lbctl.base.registry import Registry

if TYPE_CHECKING:
    from lbctl.signals.source import MetricsTable

_MODULES = Registry(
    {
        "vllm": "lbctl.signals.vllm",
        "sglang": "lbctl.signals.sglang",
        "tgi": "lbctl.signals.tgi",
        "triton": "lbctl.signals.triton",
        "trtllm": "lbctl.signals.trtllm",
        "lmdeploy": "lbctl.signals.lmdeploy",
        "nim": "lbctl.signals.nim",
        "llamacpp": "lbctl.signals.llamacpp",
        "ray": "lbctl.signals.ray",
        "torchserve": "lbctl.signals.torchserve",
        "tfserving": "lbctl.signals.tfserving",
        "kserve": "lbctl.signals.kserve",
        "dcgm": "lbctl.signals.dcgm",
        "nvidia_gpu_exporter": "lbctl.signals.nvidia_gpu_exporter",
        "amd": "lbctl.signals.amd",
    }
)
KINDS = _MODULES.names
"""Kinds with a table; for `custom` and `prometheus` the fleet defines what a metric means."""


@cache
def table(kind: str) -> MetricsTable:
    """Return the table of that kind; it is imported on first use. Raises UnknownName."""
    metrics_table: MetricsTable = import_module(_MODULES.get(kind)).TABLE
    return metrics_table

"""Converts metrics pages from replicas and GPUs to signals, each with a unit and an age.

This package does no I/O and does not read any clock. To add a kind of source, add a table in `engines`, in
`gpu_exporters` or in a new module, a line here, and its name in `lbctl.model.telemetry`.
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
        "vllm": "lbctl.signals.vllm:VLLM",
        "sglang": "lbctl.signals.sglang",
        "tgi": "lbctl.signals.engines:TGI",
        "triton": "lbctl.signals.triton",
        "trtllm": "lbctl.signals.engines:TRTLLM",
        "lmdeploy": "lbctl.signals.engines:LMDEPLOY",
        "nim": "lbctl.signals.engines:NIM",
        "llamacpp": "lbctl.signals.engines:LLAMACPP",
        "ray": "lbctl.signals.vllm:RAY",
        "torchserve": "lbctl.signals.engines:TORCHSERVE",
        "tfserving": "lbctl.signals.engines:TFSERVING",
        "kserve": "lbctl.signals.engines:KSERVE",
        "dynamo": "lbctl.signals.routers:DYNAMO",
        "smg": "lbctl.signals.routers:SMG",
        "llm_d": "lbctl.signals.routers:LLM_D",
        "dcgm": "lbctl.signals.gpu_exporters:DCGM",
        "nvidia_gpu_exporter": "lbctl.signals.gpu_exporters:NVIDIA_GPU_EXPORTER",
        "amd": "lbctl.signals.gpu_exporters:AMD",
        "agent": "lbctl.signals.agent",
    }
)
KINDS = _MODULES.names
"""Kinds that have a table; for `custom` and `prometheus`, the fleet defines the meaning of a metric."""


@cache
def table(kind: str) -> MetricsTable:
    """Return this kind's table, which is imported on first use. Raises UnknownName."""
    module, _, name = _MODULES.get(kind).partition(":")
    metrics_table: MetricsTable = getattr(import_module(module), name or "TABLE")
    return metrics_table

"""`telemetry` and `weighting`: what a pool tells of itself, and what is made of it."""

from __future__ import annotations

from typing import Literal

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Section

Kind = Literal[
    "vllm", "sglang", "tgi", "triton", "trtllm", "lmdeploy", "nim", "llamacpp", "ray", "torchserve", "tfserving",
    "kserve", "dcgm", "nvidia_gpu_exporter", "amd", "prometheus", "custom",
]  # fmt: skip
Signal = Literal[
    "queue", "running", "kv_cache", "gpu", "gpu_memory_free", "temperature", "throttle", "xid", "ttft",
    "token_latency", "throughput", "progress",
]  # fmt: skip


class Source(Section):
    kind: Kind
    url: v.Url
    signal: Signal | None = None
    metric: v.Metric | None = None
    query: v.Text | None = None
    unit: v.Label | None = None
    match_labels: dict[v.Metric, v.LabelMatch] = {}


class Telemetry(Section):
    interval: v.Duration = q.Duration(5_000)
    timeout: v.Duration = q.Duration(2_000)
    stale_after: v.Duration = q.Duration(15_000)
    sources: list[Source] = []


class Adaptive(Section):
    smoothing: v.Duration = q.Duration(20_000)
    act_above: v.Percent = q.Percent(25)
    release_below: v.Percent = q.Percent(15)
    across_types: v.Percent = q.Percent(45)


class MaxStep(Section):
    down: v.Percent = q.Percent(50)
    up: v.Percent = q.Percent(10)


class Weighting(Section):
    strategy: Literal["static", "adaptive", "composite"] | None = None
    adaptive: Adaptive = Adaptive()
    composite: dict[Signal, v.PositiveNumber] = {}
    max_step: MaxStep = MaxStep()
    deadband: v.Percent = q.Percent(10)
    floor: v.Percent = q.Percent(5)
    ceiling: v.WidePercent = q.Percent(400)

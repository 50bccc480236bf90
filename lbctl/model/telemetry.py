"""`telemetry` and `weighting`: which metrics a pool has, and how weights follow them."""

from typing import Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Section

Kind = Literal[
    "vllm", "sglang", "tgi", "triton", "trtllm", "lmdeploy", "nim", "llamacpp", "ray", "torchserve", "tfserving",
    "kserve", "dcgm", "nvidia_gpu_exporter", "amd", "prometheus", "custom",
]  # fmt: skip
Signal = Literal[
    "queue", "running", "kv_cache", "gpu", "gpu_memory_free", "temperature", "throttle", "xid", "ttft",
    "token_latency", "throughput", "cache_hits", "progress",
]  # fmt: skip


class Source(Section):
    kind: Kind = Field(description="What writes the page.")
    url: v.Url = Field(
        description="`{address}`, `{host}`, `{port}`, `{name}` and `{device}` are the replica's, here, in `query` and "
        "in `match_labels`."
    )
    signal: Signal | None = Field(None, description="`custom`, `prometheus`: the signal that it gives.")
    metric: v.Metric | None = Field(None, description="`custom`: the metric that is read.")
    query: v.Text | None = Field(None, description="`prometheus`: the PromQL that is asked.")
    unit: v.Label | None = Field(
        None, description="`custom`, `prometheus`: the unit of the metric. Without it: the signal's own."
    )
    match_labels: dict[v.Metric, v.LabelMatch] = Field({}, description="Only lines with these labels count.")


class Telemetry(Section):
    interval: v.Duration = Field(
        q.Duration(5_000),
        description="Between two scrapes of each page; by default `1s` in a pool with `algorithm: pick`.",
    )
    timeout: v.Duration = Field(q.Duration(2_000), description="How long a page may take.")
    stale_after: v.Duration = Field(q.Duration(15_000), description="From this age on a sample counts no more.")
    sources: list[Source] = Field(
        [], description="The pages that are read; the first with a fresh value for a signal gives it."
    )


class Adaptive(Section):
    smoothing: v.Duration = Field(q.Duration(20_000), description="Evidence of this age counts about a third.")
    act_above: v.Percent = Field(
        q.Percent(25), description="How far a replica's speed must be off its peers' before its weight moves."
    )
    release_below: v.Percent = Field(q.Percent(15), description="How near it must be again to have its capacity back.")
    across_types: v.Percent = Field(
        q.Percent(45), description="The same between types of GPU; nearer than this is shown, and moves nothing."
    )


class MaxStep(Section):
    down: v.Percent = Field(q.Percent(50), description="Of the capacity, at most, downwards.")
    up: v.Percent = Field(q.Percent(10), description="Of the capacity, at most, upwards.")


class Weighting(Section):
    strategy: Literal["static", "adaptive", "composite"] | None = Field(
        None,
        description="`static`: the capacity alone. `adaptive`: the capacity × evidence of speed. `composite`: a score "
        "of load signals. Without it: `adaptive` where a source gives evidence and nothing is hashed, else `static`.",
    )
    adaptive: Adaptive = Field(Adaptive.default(), description="When `adaptive` acts.")
    composite: dict[Signal, v.PositiveNumber] = Field(
        {}, description="For `composite`: what each signal counts, on any scale. More signal, less weight."
    )
    max_step: MaxStep = Field(MaxStep.default(), description="How far a weight moves in one interval.")
    deadband: v.Percent = Field(q.Percent(10), description="Smaller moves are not sent.")
    floor: v.PositivePercent = Field(q.Percent(5), description="The least weight, of the capacity: no replica starves.")
    ceiling: v.PositiveWidePercent = Field(q.Percent(400), description="The most weight, of the capacity.")

"""`telemetry` and `weighting`: a pool's metrics and how they determine weights."""

from typing import Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Section

Kind = Literal[
    "vllm", "sglang", "tgi", "triton", "trtllm", "lmdeploy", "nim", "llamacpp", "ray", "torchserve", "tfserving",
    "kserve", "dynamo", "smg", "llm_d", "dcgm", "nvidia_gpu_exporter", "amd", "agent", "prometheus", "custom",
]  # fmt: skip
Signal = Literal[
    "queue", "deferred", "running", "kv_cache", "gpu", "gpu_memory_free", "temperature", "throttle", "xid",
    "row_remap_failure", "ttft", "token_latency", "throughput", "preemptions", "rejections", "cache_hits", "awake",
    "progress",
]  # fmt: skip


class Source(Section):
    kind: Kind = Field(description="Kind of the metrics source.")
    url: v.Url = Field(
        description="Metrics URL. `{address}`, `{host}`, `{port}`, `{name}` and `{device}` are replaced "
        "with the replica's values, here and in `query` and `match_labels`."
    )
    signal: Signal | None = Field(None, description="For `custom` and `prometheus`: signal that the metric provides.")
    metric: v.Metric | None = Field(None, description="For `custom`: name of the metric.")
    query: v.Text | None = Field(None, description="For `prometheus`: PromQL query.")
    unit: v.Label | None = Field(
        None, description="For `custom` and `prometheus`: unit of the metric. Default: the unit of the signal."
    )
    match_labels: dict[v.Metric, v.LabelMatch] = Field(
        {}, description="Labels that a sample on the metrics page must have."
    )


class Telemetry(Section):
    interval: v.Duration = Field(
        q.Duration(5_000),
        description="Scrape interval; `1s` by default in a pool with `algorithm: pick`.",
    )
    timeout: v.Duration = Field(q.Duration(2_000), description="Scrape timeout.")
    stale_after: v.Duration = Field(q.Duration(15_000), description="Maximum age of a sample.")
    sources: list[Source] = Field(
        [], description="Metrics sources. For each signal, the first source with a fresh value is used."
    )


class Adaptive(Section):
    smoothing: v.Duration = Field(
        q.Duration(20_000), description="Age at which evidence has a weight of about one third."
    )
    act_above: v.Percent = Field(
        q.Percent(25),
        description="Minimum difference between a replica's speed and its peers' speed before its weight changes.",
    )
    release_below: v.Percent = Field(
        q.Percent(15), description="Difference in speed below which the replica's weight returns to its capacity."
    )
    across_types: v.Percent = Field(
        q.Percent(45),
        description="Minimum difference in speed between GPU types. Smaller differences do not change weights.",
    )


class MaxStep(Section):
    down: v.Percent = Field(q.Percent(50), description="Maximum decrease, as a share of the capacity.")
    up: v.Percent = Field(q.Percent(10), description="Maximum increase, as a share of the capacity.")


class Weighting(Section):
    strategy: Literal["static", "adaptive", "composite"] | None = Field(
        None,
        description="`static`: the capacity. `adaptive`: the capacity times the measured speed. `composite`: computed "
        "from load signals. Default: `adaptive` if a source provides evidence and the algorithm is not `hash`, "
        "otherwise `static`.",
    )
    adaptive: Adaptive = Field(Adaptive.default(), description="Thresholds of `adaptive`.")
    composite: dict[Signal, v.PositiveNumber] = Field(
        {},
        description="For `composite`: coefficient of each signal, on any scale. A higher signal gives a lower weight.",
    )
    max_step: MaxStep = Field(MaxStep.default(), description="Maximum weight change per interval.")
    deadband: v.Percent = Field(q.Percent(10), description="Minimum weight change that is published.")
    floor: v.PositivePercent = Field(q.Percent(5), description="Minimum weight, as a share of the capacity.")
    ceiling: v.PositiveWidePercent = Field(q.Percent(400), description="Maximum weight, as a share of the capacity.")

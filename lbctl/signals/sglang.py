"""SGLang.

The scheduler reports its values once for each rank that logs. The ranks of a data-parallel group run in step and repeat
the same values; only `dp_rank` distinguishes schedulers. With priorities, each priority has a line, and the total has
`priority=""`. Request counters change only when a request ends; the counters of steps and of real-time tokens (newer
versions) change while it runs.

`cached_tokens_total` appears with the first hit. Until then, an engine that counts uncached prompts is known to have
had no hits. For tokens from HiCache's storage, the source contains the backend's name, for example
`storage_MooncakeStore`.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


def _of_scheduler(name: str, **more: str | tuple[str, ...]) -> MetricSeries:
    where = tuple((key, (value,) if isinstance(value, str) else value) for key, value in more.items())
    return MetricSeries(f"sglang:{name}", where=(("priority", ("",)), *where), repeats=_RANKS)


def _cached(source: str) -> MetricSeries:
    return MetricSeries("sglang:cached_tokens_total", where=(("cache_source", (source,)),))


TABLE = MetricsTable(
    kind="sglang",
    title="SGLang",
    series={
        "queue": (_of_scheduler("num_queue_reqs"),),
        "running": (_of_scheduler("num_running_reqs"),),
        "kv_cache": (_of_scheduler("token_usage"),),
        "cache_hits": (_of_scheduler("cache_hit_rate"),),
        "throughput": (_of_scheduler("gen_throughput"),),
        "iterations": (_of_scheduler("cuda_graph_passes_total"),),
        "prefill_tokens": (
            _of_scheduler("realtime_tokens_total", mode="prefill_compute"),
            MetricSeries("sglang:prompt_tokens_total", versions="all versions; changes when a request ends"),
        ),
        "computed_tokens": (_of_scheduler("realtime_tokens_total", mode="prefill_compute"),),
        "prompt_tokens": (_of_scheduler("realtime_tokens_total", mode=("prefill_compute", "prefill_cache")),),
        "decode_tokens": (
            _of_scheduler("realtime_tokens_total", mode="decode"),
            MetricSeries("sglang:generation_tokens_total", versions="all versions; changes when a request ends"),
        ),
        "cache_found": (
            MetricSeries("sglang:cached_tokens_total"),
            MetricSeries("sglang:uncached_prompt_tokens_histogram_count", scale=0.0, versions="0 before the first hit"),
        ),
        "cached_device": (_cached("device"),),
        "cached_host": (_cached("host"),),
        "cached_external": (MetricSeries("sglang:cached_tokens_total", where_prefix=(("cache_source", "storage_"),)),),
        "ttft_seconds": (MetricSeries("sglang:time_to_first_token_seconds_sum"),),
        "ttft_count": (MetricSeries("sglang:time_to_first_token_seconds_count"),),
        "itl_seconds": (
            MetricSeries("sglang:inter_token_latency_seconds_sum"),
            MetricSeries("sglang:time_per_output_token_seconds_sum", versions="older"),
        ),
        "itl_count": (
            MetricSeries("sglang:inter_token_latency_seconds_count"),
            MetricSeries("sglang:time_per_output_token_seconds_count", versions="older"),
        ),
        "finished": (MetricSeries("sglang:num_requests_total"),),
        "preempted": (_of_scheduler("num_retracted_requests_total"),),
    },
    evidence="tokens",
    heartbeat="requests",
    reserves_memory=True,
    removed={"sglang:time_per_output_token_seconds": "sglang:inter_token_latency_seconds"},
    notes=(
        "The server needs `--enable-metrics`.",
        "With `cuda_graph_passes_total`, progress changes at every step. Without it, no evidence is available.",
    ),
)

"""Metrics tables of vLLM v1 (engines by label) and v0, standalone and within Ray Serve.

Despite their names, the `_perc` metrics are ratios. Values are reported per engine of the process, so counts are
summed, and a replica's cache usage is the mean over its engines. Only steps that produce tokens are counted: while a
long prompt is prefilled alone, only the cache usage changes.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

_V0 = "v0, and v1 before 0.11"
_REJECTIONS = "v1 from 2026-09 (#55812)"
_BY_REASON = "v1 from 2026-04 (#38435)"


def series(prefix: str = "vllm:") -> dict[str, tuple[MetricSeries, ...]]:
    """Return the aliases, with `prefix` in place of `vllm:`."""

    def read(name: str, versions: str = "", also: str = "", **labels: str) -> MetricSeries:
        where = tuple((label, (value,)) for label, value in labels.items())
        others = (prefix + also,) if also else ()
        return MetricSeries(prefix + name, where=where, also=others, versions=versions)

    def cached(*sources: str) -> MetricSeries:
        metric = prefix + "prompt_tokens_cached_by_source_total"
        return MetricSeries(metric, where=(("source", sources),), versions="0.33")

    return {
        "queue": (
            read("num_requests_waiting_by_reason", _BY_REASON, reason="capacity"),
            read("num_requests_waiting", "older; includes deferred requests"),
        ),
        "deferred": (read("num_requests_waiting_by_reason", _BY_REASON, reason="deferred"),),
        "running": (read("num_requests_running"),),
        "kv_cache": (
            read("kv_cache_usage_perc", "v1 from 0.9"),
            read("gpu_cache_usage_perc", "deprecated in 0.9, removed 2025-11"),
        ),
        "iterations": (read("iteration_tokens_total_count"),),
        "prefill_tokens": (read("prompt_tokens_total"), read("prompt_tokens")),
        "computed_tokens": (
            MetricSeries(f"{prefix}prompt_tokens_by_source_total", where=(("source", ("local_compute",)),)),
        ),
        "prompt_tokens": (read("prompt_tokens_total"), read("prompt_tokens")),
        "decode_tokens": (read("generation_tokens_total"), read("generation_tokens")),
        "cache_lookups": (
            read("prefix_cache_queries_total", "v1 from 0.9"),
            read("prefix_cache_queries", "v1 from 0.9"),
            read("gpu_prefix_cache_queries_total", "v1 before 0.9"),
        ),
        "cache_found": (
            read("prefix_cache_hits_total", "v1 from 0.9", also="external_prefix_cache_hits_total"),
            read("prefix_cache_hits", "v1 from 0.9", also="external_prefix_cache_hits"),
            read("gpu_prefix_cache_hits_total", "v1 before 0.9"),
        ),
        "cached_total": (read("prompt_tokens_cached_by_source_total", "0.33"),),
        "cached_device": (
            cached("device"),
            read("prefix_cache_hits_total", "v1 from 0.9"),
            read("prefix_cache_hits", "v1 from 0.9"),
            read("gpu_prefix_cache_hits_total", "v1 before 0.9"),
        ),
        "cached_host": (cached("host"),),
        "cached_disk": (cached("disk"),),
        "cached_external": (
            cached("p2p", "external_unspecified"),
            read("external_prefix_cache_hits_total", "older; includes host and disk"),
            read("external_prefix_cache_hits", "older; includes host and disk"),
        ),
        "ttft_seconds": (read("time_to_first_token_seconds_sum"),),
        "ttft_count": (read("time_to_first_token_seconds_count"),),
        "itl_seconds": (
            read("inter_token_latency_seconds_sum", "v1 from 0.11"),
            read("time_per_output_token_seconds_sum", _V0),
        ),
        "itl_count": (
            read("inter_token_latency_seconds_count", "v1 from 0.11"),
            read("time_per_output_token_seconds_count", _V0),
        ),
        "finished": (read("request_success_total"), read("request_success")),
        "preempted": (read("num_preemptions_total"), read("num_preemptions")),
        "rejected": (read("admission_rejections_total", _REJECTIONS), read("admission_rejections", _REJECTIONS)),
        "awake": (read("engine_sleep_state", "v1 from 2025-11 (#24176)", sleep_state="awake"),),
    }


VLLM = MetricsTable(
    kind="vllm",
    title="vLLM",
    series=series(),
    evidence="tokens",
    heartbeat="steps",
    reserves_memory=True,
    notes=(
        "Hits in external caches (KV connectors) also count as hits. On a decode-only replica, the share is near 1.",
        "Rejections need `--max-num-queued-reqs` or `--max-num-queued-tokens`.",
    ),
    removed={
        "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
        "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
        "vllm:gpu_prefix_cache_hit_rate": "vllm:prefix_cache_hits_total and vllm:prefix_cache_queries_total",
    },
)

_OF_RAY = {
    "queue": (MetricSeries("ray_serve_deployment_queued_queries"),),
    "running": (
        MetricSeries("ray_serve_num_ongoing_requests_at_replicas"),
        MetricSeries("ray_serve_replica_processing_queries"),
    ),
    "finished": (
        MetricSeries("ray_serve_deployment_request_counter_total"),
        MetricSeries("ray_serve_deployment_request_counter"),
    ),
}
_WITHIN_RAY = (series("ray_vllm_"), series("ray_vllm:"))

RAY = MetricsTable(
    kind="ray",
    title="Ray Serve",
    series={
        quantity: (*(item for source in _WITHIN_RAY for item in source[quantity]), *_OF_RAY.get(quantity, ()))
        for quantity in _WITHIN_RAY[0]
    },
    evidence="tokens",
    heartbeat="requests",
    notes=(
        "Only vLLM inside Ray provides evidence and per-step progress. Otherwise, the weights equal the capacities.",
        "Select the deployment with `match_labels`, because the page covers all deployments on a node.",
    ),
)
"""Ray Serve, and vLLM inside it.

A page covers a node: `match_labels` (deployment, application, replica) selects the lines of a replica. Newer versions
of Ray write `_` in place of the colon in vLLM's names.
"""

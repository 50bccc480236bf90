"""trtllm-serve. Its step metrics are gauges of the last step, and its histograms are updated when a request ends."""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
    kind="trtllm",
    title="trtllm-serve",
    series={
        "queue": (MetricSeries("trtllm_num_requests_waiting"),),
        "running": (MetricSeries("trtllm_num_requests_running"),),
        "kv_cache": (MetricSeries("trtllm_kv_cache_utilization"),),
        "cache_hits": (MetricSeries("trtllm_kv_cache_hit_rate"),),
        "prefill_tokens": (MetricSeries("trtllm_prompt_tokens_total"),),
        "decode_tokens": (MetricSeries("trtllm_generation_tokens_total"),),
        "ttft_seconds": (MetricSeries("trtllm_time_to_first_token_seconds_sum"),),
        "ttft_count": (MetricSeries("trtllm_time_to_first_token_seconds_count"),),
        "itl_seconds": (MetricSeries("trtllm_time_per_output_token_seconds_sum"),),
        "itl_count": (MetricSeries("trtllm_time_per_output_token_seconds_count"),),
        "finished": (
            MetricSeries("trtllm_num_requests_completed_total"),
            MetricSeries("trtllm_request_success_total"),
        ),
    },
    no_evidence="it counts no steps, so the batch behind a time between tokens is unknown",
    heartbeat="requests",
    reserves_memory=True,
    notes=(
        "histograms need `return_perf_metrics: true`; queue, running and cache are missing in older versions",
        "the time between tokens is a mean for each request",
    ),
)

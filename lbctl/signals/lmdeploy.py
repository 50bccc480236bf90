"""LMDeploy. It counts the tokens of every step, but not the steps."""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
    kind="lmdeploy",
    title="LMDeploy",
    series={
        "queue": (MetricSeries("lmdeploy:num_requests_waiting"),),
        "running": (MetricSeries("lmdeploy:num_requests_running"),),
        "kv_cache": (MetricSeries("lmdeploy:gpu_cache_usage_perc"),),
        "prefill_tokens": (MetricSeries("lmdeploy:prompt_tokens_total"),),
        "decode_tokens": (MetricSeries("lmdeploy:generation_tokens_total"),),
        "ttft_seconds": (MetricSeries("lmdeploy:time_to_first_token_seconds_sum"),),
        "ttft_count": (MetricSeries("lmdeploy:time_to_first_token_seconds_count"),),
        "itl_seconds": (MetricSeries("lmdeploy:time_per_output_token_seconds_sum"),),
        "itl_count": (MetricSeries("lmdeploy:time_per_output_token_seconds_count"),),
        "finished": (MetricSeries("lmdeploy:e2e_request_latency_seconds_count"),),
    },
    no_evidence="it counts no steps, so the batch behind a time between tokens is unknown",
    heartbeat="steps",
    reserves_memory=True,
    notes=("some versions count each generated token twice: compare throughput only between replicas of one version",),
)

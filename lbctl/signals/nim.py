"""NVIDIA NIM for language models: names without a prefix, at `/v1/metrics`.

They are updated in every step, but no metric counts steps.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
    kind="nim",
    title="NVIDIA NIM",
    series={
        "queue": (MetricSeries("num_requests_waiting"),),
        "running": (MetricSeries("num_requests_running"),),
        "kv_cache": (MetricSeries("gpu_cache_usage_perc"),),
        "prefill_tokens": (MetricSeries("prompt_tokens_total"),),
        "decode_tokens": (MetricSeries("generation_tokens_total"),),
        "ttft_seconds": (MetricSeries("time_to_first_token_seconds_sum"),),
        "ttft_count": (MetricSeries("time_to_first_token_seconds_count"),),
        "itl_seconds": (MetricSeries("time_per_output_token_seconds_sum"),),
        "itl_count": (MetricSeries("time_per_output_token_seconds_count"),),
        "finished": (MetricSeries("request_finish_total"),),
    },
    no_evidence="it counts no steps, so the batch behind a time between tokens is unknown",
    heartbeat="steps",
    reserves_memory=True,
    notes=("the page is `/v1/metrics`; newer NIMs that show vLLM's own page are `kind: vllm`",),
)

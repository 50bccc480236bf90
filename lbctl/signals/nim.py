"""NVIDIA NIM for language models: names without a prefix, at `/v1/metrics`.

They are updated in every step, but no metric counts steps.
"""

from __future__ import annotations

from lbctl.signals.source import MetricsTable, Series

TABLE = MetricsTable(
    kind="nim",
    title="NVIDIA NIM",
    series={
        "queue": (Series("num_requests_waiting"),),
        "running": (Series("num_requests_running"),),
        "kv_cache": (Series("gpu_cache_usage_perc"),),
        "prefill_tokens": (Series("prompt_tokens_total"),),
        "decode_tokens": (Series("generation_tokens_total"),),
        "ttft_seconds": (Series("time_to_first_token_seconds_sum"),),
        "ttft_count": (Series("time_to_first_token_seconds_count"),),
        "itl_seconds": (Series("time_per_output_token_seconds_sum"),),
        "itl_count": (Series("time_per_output_token_seconds_count"),),
        "finished": (Series("request_finish_total"),),
    },
    no_evidence="it counts no steps, so the batch behind a time between tokens is unknown",
    heartbeat="steps",
    reserves_memory=True,
    notes=("the page is `/v1/metrics`; newer NIMs that show vLLM's own page are `kind: vllm`",),
)

"""llama.cpp's server, started with `--metrics`.

Tokens and their time are added when a request ends, decodes at once; over some seconds both describe the batch.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
    kind="llamacpp",
    title="llama.cpp",
    series={
        "queue": (MetricSeries("llamacpp:requests_deferred"),),
        "running": (MetricSeries("llamacpp:requests_processing"),),
        "kv_cache": (MetricSeries("llamacpp:kv_cache_usage_ratio", versions="removed in 2025 (#13660)"),),
        "iterations": (MetricSeries("llamacpp:n_decode_total"),),
        "prefill_tokens": (MetricSeries("llamacpp:prompt_tokens_total"),),
        "decode_tokens": (MetricSeries("llamacpp:tokens_predicted_total"),),
        "itl_seconds": (MetricSeries("llamacpp:tokens_predicted_seconds_total"),),
        "itl_count": (MetricSeries("llamacpp:tokens_predicted_total"),),
    },
    evidence="tokens",
    heartbeat="steps",
    removed={
        "llamacpp:kv_cache_usage_ratio": "nothing: the server no longer reports it",
        "llamacpp:kv_cache_tokens": "nothing: the server no longer reports it",
    },
    notes=("needs `--metrics`; there is no time to the first token",),
)

"""Metrics tables of engines that need no separate module, each followed by the quirks of its metrics page."""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable

_DECODE = (("method", ("decode",)),)

TGI = MetricsTable(
    kind="tgi",
    title="Text Generation Inference",
    series={
        "queue": (MetricSeries("tgi_queue_size"),),
        "running": (MetricSeries("tgi_batch_current_size"),),
        "iterations": (MetricSeries("tgi_batch_inference_success"), MetricSeries("tgi_batch_inference_success_total")),
        "prefill_tokens": (MetricSeries("tgi_request_input_length_sum"),),
        "decode_tokens": (MetricSeries("tgi_request_generated_tokens_sum"),),
        "itl_seconds": (MetricSeries("tgi_request_mean_time_per_token_duration_sum"),),
        "itl_count": (MetricSeries("tgi_request_mean_time_per_token_duration_count"),),
        "compute_seconds": (MetricSeries("tgi_batch_inference_duration_sum", where=_DECODE),),
        "compute_count": (MetricSeries("tgi_batch_inference_duration_count", where=_DECODE),),
        "batches": (MetricSeries("tgi_batch_inference_duration_count", where=_DECODE),),
        "items": (MetricSeries("tgi_request_generated_tokens_sum"),),
        "finished": (MetricSeries("tgi_request_success"), MetricSeries("tgi_request_success_total")),
    },
    evidence="batches",
    heartbeat="steps",
    reserves_memory=True,
    notes=(
        "The engine does not report the time to first token. The time between tokens is averaged over each request.",
    ),
)
"""Text Generation Inference.

The table has no cache metric, because TGI counts tokens differently for the capacity and for the content of a batch. A
batch is a step of the engine, so the time in the model is known for each step. TGI counts tokens only when a request
ends, which averages out over some seconds.
"""

TRTLLM = MetricsTable(
    kind="trtllm",
    title="trtllm-serve",
    series={
        "queue": (MetricSeries("trtllm_num_requests_waiting"),),
        "running": (MetricSeries("trtllm_num_requests_running"),),
        "kv_cache": (MetricSeries("trtllm_kv_cache_utilization"),),
        "cache_hits": (
            MetricSeries("trtllm_kv_cache_hit_rate", versions="without `trtllm_prompt_cached_tokens_total`"),
        ),
        "prefill_tokens": (MetricSeries("trtllm_prompt_tokens_total"),),
        "decode_tokens": (MetricSeries("trtllm_generation_tokens_total"),),
        "cache_lookups": (MetricSeries("trtllm_prompt_tokens_total"),),
        "cache_found": (MetricSeries("trtllm_prompt_cached_tokens_total", versions="from 2026-04"),),
        "batches": (
            MetricSeries(
                "trtllm_prefill_batch_tokens_count",
                also=("trtllm_kv_cache_gen_alloc_blocks_total",),
                versions="from 2026-04",
            ),
        ),
        "ttft_seconds": (MetricSeries("trtllm_time_to_first_token_seconds_sum"),),
        "ttft_count": (MetricSeries("trtllm_time_to_first_token_seconds_count"),),
        "itl_seconds": (MetricSeries("trtllm_time_per_output_token_seconds_sum"),),
        "itl_count": (MetricSeries("trtllm_time_per_output_token_seconds_count"),),
        "finished": (
            MetricSeries("trtllm_num_requests_completed_total"),
            MetricSeries("trtllm_request_success_total"),
        ),
    },
    no_evidence="the engine does not count steps, so the batch size for a given time between tokens is unknown",
    heartbeat="requests",
    reserves_memory=True,
    page="/prometheus/metrics",
    notes=(
        "The metrics page is `/prometheus/metrics`; `/metrics` is JSON.",
        "Queue, running and cache metrics need `enable_iter_perf_stats: true`, which older versions do not have.",
        "Histograms and the counters of tokens and cached tokens need `return_perf_metrics: true`.",
        "The time between tokens is averaged over each request.",
    ),
)
"""trtllm-serve. Its step metrics are gauges of the last step, and its histograms are updated when a request ends.

Two counters change during a long request: one with each step that processes a prompt, and one with each cache block of
a response.
"""

LMDEPLOY = MetricsTable(
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
    no_evidence="the engine does not count steps, so the batch size for a given time between tokens is unknown",
    heartbeat="steps",
    reserves_memory=True,
    notes=(
        "Some versions count each generated token twice. Compare throughput only between replicas of the same version.",
    ),
)
"""LMDeploy. The engine counts the tokens of every step, but not the steps."""

NIM = MetricsTable(
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
    no_evidence="the engine does not count steps, so the batch size for a given time between tokens is unknown",
    heartbeat="steps",
    reserves_memory=True,
    page="/v1/metrics",
    notes=("The metrics page is `/v1/metrics`. For newer NIMs with vLLM's metrics, use `kind: vllm`.",),
)
"""NVIDIA NIM for language models, with metric names without a prefix at `/v1/metrics`.

The metrics are updated in every step, but none of them counts steps.
"""

LLAMACPP = MetricsTable(
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
        "llamacpp:kv_cache_usage_ratio": "another metric, because the server no longer reports this one",
        "llamacpp:kv_cache_tokens": "another metric, because the server no longer reports this one",
    },
    notes=("The server needs `--metrics`. The server does not report the time to first token.",),
)
"""llama.cpp's server, started with `--metrics`.

The server counts tokens and their times when a request ends, but decodes immediately. Over some seconds, both describe
the batch.
"""

TORCHSERVE = MetricsTable(
    kind="torchserve",
    title="TorchServe",
    series={
        "gpu": (MetricSeries("GPUUtilization", scale=0.01),),
        "finished": (MetricSeries("ts_inference_requests_total"),),
    },
    no_evidence="the batch size is not reported",
    heartbeat="requests",
    gpus=GpuLabels(("DeviceId",)),
    notes=(
        "The server does not report the queue length; `ts_queue_latency_microseconds` and `QueueTime` are times.",
        "The server needs `metrics_mode=prometheus`. GPU metrics need the system metrics collector.",
    ),
)
"""TorchServe.

The queue metric is a time, not a length; the utilisation is in percent. The total memory is not reported.
"""

TFSERVING = MetricsTable(
    kind="tfserving",
    title="TensorFlow Serving",
    series={
        "compute_seconds": (MetricSeries(":tensorflow:serving:runtime_latency_sum", scale=1e-6),),
        "compute_count": (MetricSeries(":tensorflow:serving:runtime_latency_count"),),
        "batches": (MetricSeries(":tensorflow:serving:batching_session:processed_batch_size_count"),),
        "items": (MetricSeries(":tensorflow:serving:batching_session:processed_batch_size_sum"),),
        "finished": (
            MetricSeries(":tensorflow:serving:request_latency_count"),
            MetricSeries(":tensorflow:serving:request_count"),
        ),
    },
    evidence="batches",
    heartbeat="requests",
    page="/monitoring/prometheus/metrics",
    notes=(
        "The metrics page is `/monitoring/prometheus/metrics`.",
        "Evidence is available only with `--enable_batching`. The server does not report the queue length.",
        "The server needs a monitoring configuration with `prometheus_config { enable: true }`.",
    ),
)
"""TensorFlow Serving, at `/monitoring/prometheus/metrics`. Names begin with a colon; latencies are in microseconds."""

KSERVE = MetricsTable(
    kind="kserve",
    title="KServe and MLServer",
    series={
        "running": (MetricSeries("rest_server_requests_in_progress", versions="MLServer"),),
        "compute_seconds": (MetricSeries("request_predict_seconds_sum", versions="KServe"),),
        "compute_count": (MetricSeries("request_predict_seconds_count", versions="KServe"),),
        "finished": (
            MetricSeries("model_infer_request_success_total", versions="MLServer"),
            MetricSeries("model_infer_request_success", versions="MLServer"),
            MetricSeries("request_predict_seconds_count", versions="KServe"),
        ),
    },
    no_evidence="the batch size is not reported, and a slow response may only mean that the replica is full",
    heartbeat="requests",
    notes=("MLServer's metrics page is on port 8082. `batch_request_queue` is a histogram, not a queue length.",),
)
"""KServe's Python server and MLServer.

Neither server reports its current queue length: MLServer's queue metrics are histograms of past lengths. Requests are
processed one at a time, so the batch size is unknown.
"""

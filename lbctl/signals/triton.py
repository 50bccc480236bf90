"""Triton, including the metrics of the TensorRT-LLM backend if a model uses it.

`nv_inference_compute_infer_duration_us` adds the time of an execution once for each request in it, so it is divided by
requests, not by executions. Queue and cache are summed over models and versions. The utilisation is a ratio; free
memory is the total minus the used memory, for each GPU.
"""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable


def _trt(metric: str, label: str, value: str) -> MetricSeries:
    return MetricSeries(f"nv_trt_llm_{metric}", where=((label, (value,)),), versions="TensorRT-LLM backend")


TABLE = MetricsTable(
    kind="triton",
    title="Triton",
    series={
        "queue": (
            _trt("request_metrics", "request_type", "waiting"),
            MetricSeries("nv_inference_pending_request_count"),
        ),
        "running": (_trt("request_metrics", "request_type", "active"),),
        "kv_cache": (_trt("kv_cache_block_metrics", "kv_cache_block_type", "fraction"),),
        "gpu": (MetricSeries("nv_gpu_utilization"),),
        "gpu_memory_free": (MetricSeries("nv_gpu_memory_total_bytes", less="nv_gpu_memory_used_bytes"),),
        "iterations": (_trt("general_metrics", "general_type", "iteration_counter"),),
        "ttft_seconds": (
            MetricSeries("nv_inference_first_response_histogram_ms_sum", scale=1e-3, versions="decoupled models"),
        ),
        "ttft_count": (MetricSeries("nv_inference_first_response_histogram_ms_count", versions="decoupled models"),),
        "compute_seconds": (MetricSeries("nv_inference_compute_infer_duration_us", scale=1e-6),),
        "compute_count": (MetricSeries("nv_inference_request_success"),),
        "batches": (MetricSeries("nv_inference_exec_count"),),
        "items": (MetricSeries("nv_inference_count"),),
        "finished": (MetricSeries("nv_inference_request_success"),),
    },
    evidence="batches",
    voided_by="kv_cache",
    heartbeat="requests",
    gpus=GpuLabels(("gpu_uuid",)),
    notes=(
        (
            "With the TensorRT-LLM backend, progress changes at every step, but no evidence is available, because a "
            "request is a single execution."
        ),
        "With the vLLM backend, read the same page as `kind: vllm`.",
        "Models on the same page are counted together. If the model mix changes, select one model with `match_labels`.",
        "With a response cache, requests that spend no time in the model count too, so the measured speed is too high.",
    ),
)

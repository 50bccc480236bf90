"""Text Generation Inference.

There is no metric of the cache: the capacity and the content of the batch are in tokens of different counts. A batch is
a step of the engine, so the time in the model is known for each step; its tokens only when a request ends, which evens
out over some seconds.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

_DECODE = (("method", ("decode",)),)

TABLE = MetricsTable(
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
    notes=("no time to the first token; the time between tokens is a mean for each request",),
)

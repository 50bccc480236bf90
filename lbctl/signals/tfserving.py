"""TensorFlow Serving, at `/monitoring/prometheus/metrics`. Names begin with a colon; latencies are microseconds."""

from __future__ import annotations

from lbctl.signals.source import MetricsTable, Series

TABLE = MetricsTable(
    kind="tfserving",
    title="TensorFlow Serving",
    series={
        "compute_seconds": (Series(":tensorflow:serving:runtime_latency_sum", scale=1e-6),),
        "compute_count": (Series(":tensorflow:serving:runtime_latency_count"),),
        "batches": (Series(":tensorflow:serving:batching_session:processed_batch_size_count"),),
        "items": (Series(":tensorflow:serving:batching_session:processed_batch_size_sum"),),
        "finished": (
            Series(":tensorflow:serving:request_latency_count"),
            Series(":tensorflow:serving:request_count"),
        ),
    },
    evidence="batches",
    heartbeat="requests",
    notes=(
        "evidence only with `--enable_batching`; there is no length of the queue",
        "needs a monitoring configuration with `prometheus_config { enable: true }`",
    ),
)

"""TensorFlow Serving, at `/monitoring/prometheus/metrics`. Names begin with a colon; latencies are microseconds."""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
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
    notes=(
        "evidence only with `--enable_batching`; there is no length of the queue",
        "needs a monitoring configuration with `prometheus_config { enable: true }`",
    ),
)

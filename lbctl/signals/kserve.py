"""KServe's Python server and MLServer.

Neither reports its present queue: MLServer's queues are histograms of past lengths. Requests are predicted one by one,
so no batch is known.
"""

from __future__ import annotations

from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
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
    no_evidence="the size of batches is not reported, and a slow answer may be a full replica",
    heartbeat="requests",
    notes=("MLServer's page is on port 8082; `batch_request_queue` is a histogram, not a queue",),
)

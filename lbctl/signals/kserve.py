"""KServe's Python server and MLServer. Neither tells a present queue: MLServer's queues are histograms of lengths that
once were. A request is predicted by itself, so no batch is known.
"""

from __future__ import annotations

from lbctl.signals.source import Series, Table

TABLE = Table(
    kind="kserve",
    title="KServe and MLServer",
    series={
        "running": (Series("rest_server_requests_in_progress", versions="MLServer"),),
        "compute_seconds": (Series("request_predict_seconds_sum", versions="KServe"),),
        "compute_count": (Series("request_predict_seconds_count", versions="KServe"),),
        "finished": (
            Series("model_infer_request_success_total", versions="MLServer"),
            Series("model_infer_request_success", versions="MLServer"),
            Series("request_predict_seconds_count", versions="KServe"),
        ),
    },
    without="no size of a batch is told, and a slow answer may be a full replica",
    heartbeat="requests",
    notes=("MLServer's page is on port 8082; `batch_request_queue` is a histogram, not a queue",),
)

"""Ray Serve, and vLLM inside it.

A page covers a node: `match_labels` (deployment, application, replica) selects the lines of a replica. Newer versions
of Ray write `_` for the colon of vLLM's names.
"""

from __future__ import annotations

from lbctl.signals import vllm
from lbctl.signals.source import MetricSeries, MetricsTable

_OWN = {
    "queue": (MetricSeries("ray_serve_deployment_queued_queries"),),
    "running": (
        MetricSeries("ray_serve_num_ongoing_requests_at_replicas"),
        MetricSeries("ray_serve_replica_processing_queries"),
    ),
    "finished": (
        MetricSeries("ray_serve_deployment_request_counter_total"),
        MetricSeries("ray_serve_deployment_request_counter"),
    ),
}
_VLLM = (vllm.series("ray_vllm_"), vllm.series("ray_vllm:"))

TABLE = MetricsTable(
    kind="ray",
    title="Ray Serve",
    series={
        quantity: (*(item for source in _VLLM for item in source[quantity]), *_OWN.get(quantity, ()))
        for quantity in _VLLM[0]
    },
    evidence="tokens",
    heartbeat="requests",
    notes=(
        "evidence, and progress by steps, only from a vLLM inside Ray; a plain deployment stays on its capacity",
        "name the deployment in `match_labels`: the page is of a whole node",
    ),
)

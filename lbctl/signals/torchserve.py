"""TorchServe. Its queue is a time, not a length; the utilisation is in percent. The total memory is not reported."""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable

TABLE = MetricsTable(
    kind="torchserve",
    title="TorchServe",
    series={
        "gpu": (MetricSeries("GPUUtilization", scale=0.01),),
        "finished": (MetricSeries("ts_inference_requests_total"),),
    },
    no_evidence="the size of the batches is not reported",
    heartbeat="requests",
    gpus=GpuLabels(("DeviceId",)),
    notes=(
        "`ts_queue_latency_microseconds` and `QueueTime` are times: there is no length of the queue",
        "needs `metrics_mode=prometheus`; GPU metrics only where the collector of system metrics runs",
    ),
)

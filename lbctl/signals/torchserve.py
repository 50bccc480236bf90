"""TorchServe. Its queue is a time, not a length; the utilisation is in percent. No total of the memory is told."""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import Series, Table

TABLE = Table(
    kind="torchserve",
    title="TorchServe",
    series={
        "gpu": (Series("GPUUtilization", scale=0.01),),
        "finished": (Series("ts_inference_requests_total"),),
    },
    without="the size of the batches is not told",
    heartbeat="requests",
    gpus=GpuLabels(("DeviceId",)),
    notes=(
        "`ts_queue_latency_microseconds` and `QueueTime` are times: there is no length of the queue",
        "needs `metrics_mode=prometheus`; GPU metrics only where the collector of system metrics runs",
    ),
)

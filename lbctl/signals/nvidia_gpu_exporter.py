"""nvidia_gpu_exporter (the output of nvidia-smi): GPUs by UUID without `GPU-`, the index in a metric of its own.

Units are in the names: ratios and bytes. There is no XID.
"""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable

_REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")


def _throttle(prefix: str, versions: str) -> MetricSeries:
    first, *others = (f"nvidia_smi_{prefix}{reason}" for reason in _REASONS)
    return MetricSeries(first, combine="any", also=tuple(others), whole=True, versions=versions)


TABLE = MetricsTable(
    kind="nvidia_gpu_exporter",
    title="nvidia_gpu_exporter",
    series={
        "gpu": (MetricSeries("nvidia_smi_utilization_gpu_ratio"),),
        "gpu_memory_free": (MetricSeries("nvidia_smi_memory_free_bytes"),),
        "temperature": (MetricSeries("nvidia_smi_temperature_gpu"),),
        "throttle": (
            _throttle("clocks_event_reasons_", "newer drivers"),
            _throttle("clocks_throttle_reasons_", "older drivers"),
        ),
    },
    no_evidence="a busy GPU says nothing of the requests that keep it busy",
    gpus=GpuLabels(("uuid",), index="nvidia_smi_index"),
)

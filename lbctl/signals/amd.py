"""AMD's device metrics exporter.

Names may have the prefix `amd_`; percentages are 0–100, memory is in MB. Used and free memory are hidden on an SR-IOV
host, and in partitioned mode only partition 0 reports.
"""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable

_PREFIXES = ("", "amd_")
_VIOLATIONS = (
    "gpu_violation_processor_hot_residency_percentage",
    "gpu_violation_ppt_residency_percentage",
    "gpu_violation_socket_thermal_residency_percentage",
    "gpu_violation_vr_thermal_residency_percentage",
    "gpu_violation_hbm_thermal_residency_percentage",
)


def _both(name: str, scale: float = 1.0, less: str = "", versions: str = "") -> tuple[MetricSeries, ...]:
    return tuple(
        MetricSeries(prefix + name, scale=scale, less=prefix + less if less else "", versions=versions)
        for prefix in _PREFIXES
    )


def _throttle(prefix: str) -> MetricSeries:
    first, *others = (prefix + name for name in _VIOLATIONS)
    return MetricSeries(first, scale=0.01, also=tuple(others), versions="MI3xx")


TABLE = MetricsTable(
    kind="amd",
    title="AMD device metrics exporter",
    series={
        "gpu": _both("gpu_gfx_activity", 0.01),
        "gpu_memory_free": (*_both("gpu_free_vram", 1e6), *_both("gpu_total_vram", 1e6, less="gpu_used_vram")),
        "temperature": (
            *_both("gpu_junction_temperature", versions="MI3xx"),
            *_both("gpu_edge_temperature", versions="MI2xx"),
        ),
        "throttle": tuple(map(_throttle, _PREFIXES)),
    },
    no_evidence="a busy GPU says nothing of the requests that keep it busy",
    gpus=GpuLabels(("gpu_id", "GPU_UUID", "gpu_uuid", "serial_number", "SERIAL_NUMBER"), instance="gpu_partition_id"),
    notes=("there is no XID; `gpu_health` is not read: its values are not documented",),
)

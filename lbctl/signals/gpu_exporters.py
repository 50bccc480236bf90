"""Metrics tables for GPU exporters, each followed by the quirks of its metrics page."""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable

_NO_EVIDENCE = "a GPU's load does not show the speed of its requests"
_DCGM_SLOWED = ("power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")

DCGM = MetricsTable(
    kind="dcgm",
    title="DCGM exporter",
    series={
        "gpu": (
            MetricSeries("DCGM_FI_DEV_GPU_UTIL", scale=0.01),
            MetricSeries("DCGM_FI_PROF_GR_ENGINE_ACTIVE", versions="profiling metric; also covers MIG slices"),
        ),
        "gpu_memory_free": (MetricSeries("DCGM_FI_DEV_FB_FREE", scale=2.0**20),),
        "temperature": (MetricSeries("DCGM_FI_DEV_GPU_TEMP", whole=True),),
        "throttle": (
            MetricSeries(
                "DCGM_EXP_CLOCK_EVENTS_COUNT",
                combine="any",
                where=(("clock_event", _DCGM_SLOWED),),
                whole=True,
                versions="not among the default counters",
            ),
        ),
        "xid": (
            MetricSeries(
                "DCGM_EXP_XID_ERRORS_COUNT", code="xid", whole=True, versions="not among the default counters"
            ),
            MetricSeries("DCGM_FI_DEV_XID_ERRORS", whole=True),
        ),
        "row_remap_failure": (MetricSeries("DCGM_FI_DEV_ROW_REMAP_FAILURE", whole=True),),
    },
    no_evidence=_NO_EVIDENCE,
    gpus=GpuLabels(("UUID", "gpu", "device"), instance="GPU_I_ID", renamed=("hostname", "Hostname")),
    notes=(
        "The label `Hostname` was renamed to `hostname` in 2026-05 (#655). In `match_labels`, each name matches both.",
        "The exporter samples every 30 s by default. Set `DCGM_EXPORTER_INTERVAL` to the pool's interval.",
        "Name a MIG slice by its GPU and GPU instance, for example `0:3`.",
    ),
)
"""NVIDIA's DCGM exporter, with one page per host; it identifies GPUs by index and UUID, and MIG slices by instance.

The exporter writes a missing value as a huge integer, which is rejected. `DCGM_FI_DEV_XID_ERRORS` is the code of the
last error, not a count, and never resets. A GPU's utilisation does not apply to its slices, so
`DCGM_FI_PROF_GR_ENGINE_ACTIVE` is used for them. The exporter samples every 30 s by default, so its values may be older
than the scrape.
"""

_SMI_REASONS = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sw_power_cap",
)


def _smi_throttle(prefix: str, versions: str) -> MetricSeries:
    first, *others = (f"nvidia_smi_{prefix}{reason}" for reason in _SMI_REASONS)
    return MetricSeries(first, combine="any", also=tuple(others), whole=True, versions=versions)


NVIDIA_GPU_EXPORTER = MetricsTable(
    kind="nvidia_gpu_exporter",
    title="nvidia_gpu_exporter",
    series={
        "gpu": (MetricSeries("nvidia_smi_utilization_gpu_ratio"),),
        "gpu_memory_free": (MetricSeries("nvidia_smi_memory_free_bytes"),),
        "temperature": (MetricSeries("nvidia_smi_temperature_gpu"),),
        "throttle": (
            _smi_throttle("clocks_event_reasons_", "newer drivers"),
            _smi_throttle("clocks_throttle_reasons_", "older drivers"),
        ),
        "row_remap_failure": (MetricSeries("nvidia_smi_remapped_rows_failure", whole=True),),
    },
    no_evidence=_NO_EVIDENCE,
    gpus=GpuLabels(("uuid",), index="nvidia_smi_index"),
)
"""nvidia_gpu_exporter, based on nvidia-smi: GPUs have UUIDs without `GPU-`, and a separate metric contains the index.

Metric names contain the units (ratios and bytes). XIDs are not reported.
"""

_AMD_PREFIXES = ("", "amd_")
_AMD_VIOLATIONS = (
    "gpu_violation_processor_hot_residency_percentage",
    "gpu_violation_ppt_residency_percentage",
    "gpu_violation_socket_thermal_residency_percentage",
    "gpu_violation_vr_thermal_residency_percentage",
    "gpu_violation_hbm_thermal_residency_percentage",
)


def _amd(name: str, scale: float = 1.0, less: str = "", versions: str = "") -> tuple[MetricSeries, ...]:
    return tuple(
        MetricSeries(prefix + name, scale=scale, less=prefix + less if less else "", versions=versions)
        for prefix in _AMD_PREFIXES
    )


def _amd_throttle(prefix: str) -> MetricSeries:
    first, *others = (prefix + name for name in _AMD_VIOLATIONS)
    return MetricSeries(first, scale=0.01, also=tuple(others), versions="MI3xx")


AMD = MetricsTable(
    kind="amd",
    title="AMD device metrics exporter",
    series={
        "gpu": _amd("gpu_gfx_activity", 0.01),
        "gpu_memory_free": (*_amd("gpu_free_vram", 1e6), *_amd("gpu_total_vram", 1e6, less="gpu_used_vram")),
        "temperature": (
            *_amd("gpu_junction_temperature", versions="MI3xx"),
            *_amd("gpu_edge_temperature", versions="MI2xx"),
        ),
        "throttle": tuple(map(_amd_throttle, _AMD_PREFIXES)),
    },
    no_evidence=_NO_EVIDENCE,
    gpus=GpuLabels(("gpu_id", "GPU_UUID", "gpu_uuid", "serial_number", "SERIAL_NUMBER"), instance="gpu_partition_id"),
    notes=("XIDs are not reported. lbctl does not read `gpu_health`, because its values are not documented.",),
)
"""AMD's device metrics exporter.

Names may have the prefix `amd_`; percentages are 0–100, memory is in MB. An SR-IOV host does not report used and free
memory, and in partitioned mode, only partition 0 reports metrics.
"""

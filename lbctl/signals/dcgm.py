"""NVIDIA's DCGM exporter: one page per host, GPUs by index and UUID, MIG slices by instance.

A blank is written as a huge integer and is refused. `DCGM_FI_DEV_XID_ERRORS` is the code of the last error, not a
count, and never resets. The utilisation of a GPU is not that of its slices, for which the time in which the engine was
active is used. The exporter samples every 30 s by default, so its values are older than the scrape.
"""

from __future__ import annotations

from lbctl.signals.devices import GpuLabels
from lbctl.signals.source import MetricSeries, MetricsTable

_SLOWED = ("power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")

TABLE = MetricsTable(
    kind="dcgm",
    title="DCGM exporter",
    series={
        "gpu": (
            MetricSeries("DCGM_FI_DEV_GPU_UTIL", scale=0.01),
            MetricSeries("DCGM_FI_PROF_GR_ENGINE_ACTIVE", versions="profiling metrics; MIG slices too"),
        ),
        "gpu_memory_free": (MetricSeries("DCGM_FI_DEV_FB_FREE", scale=2.0**20),),
        "temperature": (MetricSeries("DCGM_FI_DEV_GPU_TEMP", whole=True),),
        "throttle": (
            MetricSeries(
                "DCGM_EXP_CLOCK_EVENTS_COUNT",
                combine="any",
                where=(("clock_event", _SLOWED),),
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
    },
    no_evidence="a busy GPU says nothing of the requests that keep it busy",
    gpus=GpuLabels(("UUID", "gpu", "device"), instance="GPU_I_ID"),
    notes=(
        "samples every 30 s by default (`DCGM_EXPORTER_INTERVAL`): set it to the interval of the pool",
        "a MIG slice is named by its GPU and instance, as `0:3`",
    ),
)

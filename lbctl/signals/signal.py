"""Definitions of signals: name, unit, range, and how several engines' or GPUs' lines are combined into one number.

A page contains *quantities*: gauges, which are already signals, and counters, for which only the difference between two
pages is meaningful (`signals.derive`). An absent value is unknown, never 0, and a value outside its range is rejected
like a line that cannot be parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Combine = Literal["sum", "mean", "min", "max", "any", "fatal"]
FATAL_XIDS = (48, 64, 74, 79, 95)
"""XID codes after which a GPU does not recover by itself; the default of `health.deep.fatal_xids`."""
_MAX_COUNTER = 2.0**60
_ROUNDING = 1.01


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """The definition of a signal."""

    unit: str
    """The unit in which lbctl stores the value."""
    maximum: float
    """Largest plausible value (exporters write blanks as 2^63)."""
    combine: Combine
    """How the values of several lines are combined into one."""
    description: str
    """Description of the measured value."""


SIGNALS: Mapping[str, SignalSpec] = {
    "queue": SignalSpec("requests", 1e7, "sum", "requests waiting in the engine for capacity"),
    "deferred": SignalSpec("requests", 1e7, "sum", "requests waiting for an adapter or a transfer, not for capacity"),
    "running": SignalSpec("requests", 1e7, "sum", "requests being processed by the engine"),
    "kv_cache": SignalSpec("ratio", 1.0, "mean", "utilisation of the key-value cache"),
    "gpu": SignalSpec("ratio", 1.0, "mean", "share of time that the GPU was busy"),
    "gpu_memory_free": SignalSpec("bytes", 2.0**45, "min", "free memory on the GPU that has the least"),
    "temperature": SignalSpec("celsius", 200.0, "max", "temperature of the hottest GPU"),
    "throttle": SignalSpec("ratio", 1.0, "max", "above 0 while a GPU is throttled due to heat or power"),
    "xid": SignalSpec("code", 1e6, "fatal", "last error reported by the driver; a fatal error takes precedence"),
    "row_remap_failure": SignalSpec("ratio", 1.0, "max", "1 if a GPU could not remap a faulty memory row"),
    "ttft": SignalSpec("seconds", 1e6, "mean", "mean time to first token since the last scrape"),
    "token_latency": SignalSpec("seconds", 1e6, "mean", "mean time between tokens since the last scrape"),
    "throughput": SignalSpec("tokens/s", 1e9, "sum", "tokens per second since the last scrape"),
    "preemptions": SignalSpec("requests/s", 1e6, "sum", "requests preempted per second because the cache is full"),
    "rejections": SignalSpec("requests/s", 1e6, "sum", "requests rejected per second because the queue is full"),
    "cache_hits": SignalSpec("ratio", 1.0, "mean", "share of prompt tokens that were in the prefix cache"),
    "awake": SignalSpec("ratio", 1.0, "min", "0 while the engine is asleep, otherwise 1"),
    "progress": SignalSpec(
        "count", _MAX_COUNTER, "sum", "a number that changes with each step or request of the engine"
    ),
}
"""All signals by name."""

COUNTERS: Mapping[str, str] = {
    "iterations": "engine steps",
    "prefill_tokens": "prompt tokens read",
    "computed_tokens": "prompt tokens computed, excluding those found in a cache",
    "prompt_tokens": "prompt tokens, including those found in a cache, counted with the first generated token",
    "decode_tokens": "tokens generated",
    "cache_lookups": "prompt tokens looked up in the prefix cache",
    "cache_found": "prompt tokens found in the prefix cache or in other caches",
    "cached_total": "prompt tokens found in any cache, counted together with their sources",
    "cached_device": "those found in GPU memory",
    "cached_host": "tokens found in host memory",
    "cached_disk": "those found on a disk",
    "cached_external": "tokens found in an external store or another engine",
    "ttft_seconds": "sum of times to first token",
    "ttft_count": "their number",
    "itl_seconds": "sum of times between tokens",
    "itl_count": "their number",
    "compute_seconds": "sum of the times spent in the model",
    "compute_count": "their number",
    "batches": "executions of the model",
    "items": "inputs in those executions",
    "finished": "requests answered",
    "preempted": "requests preempted",
    "rejected": "requests rejected",
}
"""Quantities that only increase; a smaller value than before means that the engine has restarted."""

RATES: Mapping[str, str] = {"throughput": "decode_tokens", "preemptions": "preempted", "rejections": "rejected"}
"""Maps each signal to the counter whose increase per second it represents."""

UNITS: Mapping[str, tuple[str, float]] = {
    "requests": ("requests", 1.0),
    "count": ("count", 1.0),
    "tokens": ("tokens", 1.0),
    "code": ("code", 1.0),
    "ratio": ("ratio", 1.0),
    "percent": ("ratio", 0.01),
    "bytes": ("bytes", 1.0),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "KB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "celsius": ("celsius", 1.0),
    "seconds": ("seconds", 1.0),
    "milliseconds": ("seconds", 1e-3),
    "microseconds": ("seconds", 1e-6),
    "nanoseconds": ("seconds", 1e-9),
    "tokens/s": ("tokens/s", 1.0),
    "requests/s": ("requests/s", 1.0),
}
"""Maps each unit used by sources to lbctl's unit and the conversion factor."""


def plausible(quantity: str, value: float) -> float | None:
    """Return the value if it is valid for the quantity, otherwise None.

    A ratio slightly above 1 becomes 1, because exporters round values.
    """
    spec = SIGNALS.get(quantity)
    limit = spec.maximum if spec else _MAX_COUNTER
    if value <= limit:
        return value
    return limit if limit == 1.0 and value <= _ROUNDING else None


def combine_of(quantity: str) -> Combine:
    """Return how the lines of this quantity are combined, unless a series overrides it."""
    spec = SIGNALS.get(quantity)
    return spec.combine if spec else "sum"

"""What a signal is: a name, a unit, a range, and how the lines of several engines or GPUs become one number.

A page gives *quantities*: gauges that are signals already, and counters of which only the difference of two pages means
something (`signals.derive`). Absent is unknown, never 0, and a value outside its range is refused like a line that
cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Combine = Literal["sum", "mean", "min", "max", "any", "fatal"]
FATAL_XIDS = (48, 64, 74, 79, 95)
"""Codes after which a GPU does not recover by itself; the default of `health.deep.fatal_xids`."""
_LARGEST_COUNTER = 2.0**60
_ROUNDING = 1.01


@dataclass(frozen=True, slots=True)
class Meaning:
    """`unit`: of the value that lbctl keeps. `most`: the largest that is believed (exporters write blanks as 2^63)."""

    unit: str
    most: float
    combine: Combine
    words: str


SIGNALS: Mapping[str, Meaning] = {
    "queue": Meaning("requests", 1e7, "sum", "requests that wait in the engine"),
    "running": Meaning("requests", 1e7, "sum", "requests that the engine works on"),
    "kv_cache": Meaning("ratio", 1.0, "mean", "used part of the key-value cache"),
    "gpu": Meaning("ratio", 1.0, "mean", "part of the time in which the GPU was busy"),
    "gpu_memory_free": Meaning("bytes", 2.0**45, "min", "free memory of the GPU that has least"),
    "temperature": Meaning("celsius", 200.0, "max", "of the hottest GPU"),
    "throttle": Meaning("ratio", 1.0, "max", "above 0 while a GPU is slowed down by heat or power"),
    "xid": Meaning("code", 1e6, "fatal", "the last error that the driver told, a fatal one before any other"),
    "ttft": Meaning("seconds", 1e6, "mean", "mean time to the first token since the last look"),
    "token_latency": Meaning("seconds", 1e6, "mean", "mean time between tokens since the last look"),
    "throughput": Meaning("tokens/s", 1e9, "sum", "tokens made in a second since the last look"),
    "progress": Meaning("count", _LARGEST_COUNTER, "sum", "a number that moves whenever the engine does something"),
}
"""Every signal of the contract."""

COUNTERS: Mapping[str, str] = {
    "iterations": "steps of the engine",
    "prefill_tokens": "prompt tokens read",
    "decode_tokens": "tokens made",
    "ttft_seconds": "sum of times to the first token",
    "ttft_count": "how many of them",
    "itl_seconds": "sum of times between tokens",
    "itl_count": "how many of them",
    "compute_seconds": "sum of times in the model",
    "compute_count": "how many of them",
    "batches": "executions of the model",
    "items": "inputs in those executions",
    "finished": "requests answered",
}
"""Quantities that only grow; a smaller value than before is a restart."""

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
}
"""Units that a source may name → the unit that lbctl keeps, and the factor to it."""


def believed(quantity: str, value: float) -> float | None:
    """The value where this quantity can have it. A ratio a hair above 1 is 1: exporters round."""
    meaning = SIGNALS.get(quantity)
    most = meaning.most if meaning else _LARGEST_COUNTER
    if value <= most:
        return value
    return most if most == 1.0 and value <= _ROUNDING else None


def combine_of(quantity: str) -> Combine:
    """How the lines of that quantity become one number, where a series does not say otherwise."""
    meaning = SIGNALS.get(quantity)
    return meaning.combine if meaning else "sum"

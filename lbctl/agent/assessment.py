"""The agent's verdict on whether the replica should get requests and, if not, why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["healthy", "unhealthy", "asleep", "warming_up", "draining"]
ReasonCode = Literal[
    "xid", "ecc", "row_remap", "gpu_lost", "driver", "memory", "slowdown", "engine", "wedged", "probe", "asleep",
    "warming_up", "draining",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why the replica gets no requests."""

    code: ReasonCode
    message: str
    """Human-readable, for example "GPU 0 reported the fatal XID 79"."""
    device: str = ""
    """The GPU, as in `GpuReading.name`, or an empty string if the reason concerns the engine."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The replica's health. Unless `state` is "healthy", `reasons` is not empty."""

    state: State
    reasons: tuple[Reason, ...] = ()
    weight: int = 100
    """Percentage of its weight, from 1 to 100, that the replica should get while it is healthy."""
    notes: tuple[str, ...] = ()
    """Facts that do not affect health, for example why no GPU is monitored."""

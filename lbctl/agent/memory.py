"""The judge's memory: everything that a decision needs from earlier readings. Times are seconds on one clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lbctl.agent.assessment import Reason
from lbctl.agent.readings import EngineReading

NEVER = -math.inf
RequestKind = Literal["warmup", "probe"]


@dataclass(frozen=True, slots=True)
class Level:
    """Whether a limit is exceeded, with hysteresis."""

    exceeded: bool = False
    contrary: int = 0
    """Number of consecutive readings that contradict `exceeded`."""

    def after(self, bad: bool, good: bool, readings: tuple[int, int]) -> Level:
        """Return the level after a reading, which is bad, good, or in between.

        `readings` is the number of consecutive bad readings after which the limit counts as exceeded, and the number of
        consecutive good readings after which it no longer does.
        """
        if not (good if self.exceeded else bad):
            return Level(self.exceeded)
        contrary = self.contrary + 1
        return Level(not self.exceeded) if contrary >= readings[self.exceeded] else Level(self.exceeded, contrary)


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """A GPU's history since the engine last restarted."""

    ecc_errors: int | None = None
    """`GpuReading.ecc_errors` from the newest reading that includes a value."""
    memory: Level = field(default_factory=Level)
    """Whether free memory is below its limit."""
    slowdown: Level = field(default_factory=Level)
    """Whether the GPU's clock has been reduced too far."""


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """The engine's progress while requests are in flight."""

    value: float | None = None
    """The last known value of the `progress` signal."""
    still_since: float | None = None
    """Time of the first reading with this value and requests in flight, or None if no request is in flight."""
    is_wedged: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """The state of an agent."""

    engine: EngineReading | None = None
    """The newest reading."""
    started_at: float | None = None
    """The last known start time of the engine process, as a Unix timestamp."""
    restarts: int = 0
    """Number of engine restarts that the agent has detected."""
    gpus: Mapping[str, GpuHistory] = field(default_factory=dict)
    """Maps `GpuReading.name` to the GPU's history."""
    gpus_at: float = NEVER
    """`GpuReadings.at` of the newest reading."""
    gpus_readable: bool = True
    """Whether the driver and all watched GPUs can be read."""
    faults: tuple[Reason, ...] = ()
    """Faults that last until the engine has restarted: xid, ecc, gpu_lost and driver."""
    failed_remaps: frozenset[str] = frozenset()
    """GPUs with a failed row remap, according to the most recent known values."""
    accepted_remaps: frozenset[str] = frozenset()
    """GPUs in `failed_remaps` that an operator has readmitted."""
    draining_since: float | None = None
    """The time at which the drain began; None if no drain is in progress."""
    is_drain_saved: bool = False
    """Whether the drain survives a restart of the agent."""
    is_asleep: bool = False
    progress: ProgressWatch = field(default_factory=ProgressWatch)
    warmed: int | None = None
    """Number of warm-up requests that the engine has answered, or None until it is known whether the engine has just
    started."""
    warmup_problem: str = ""
    """The reason why the last warm-up request failed."""
    warmup_due: float = NEVER
    """The earliest time for the next warm-up request."""
    idle_since: float | None = None
    """The time at which the engine became idle, or None if requests are in flight or if this is unknown."""
    probed_at: float = NEVER
    """The time at which the most recent probe ended."""
    probe_failures: int = 0
    """Number of consecutive failed probes."""
    probe_problem: str = ""
    """The reason why the last probe failed."""
    load_note: str = ""
    """The reason why the saved faults could not be read."""
    save_note: str = ""
    """The reason why the faults could not be saved."""

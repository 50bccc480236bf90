"""The agent's GPU and engine readings, taken once per second. An absent value is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU, or one MIG slice of a GPU."""

    index: int
    """Index of the physical GPU, as numbered by the driver; −1 if the driver has never listed the GPU."""
    uuid: str
    """UUID from the driver, for example `GPU-5fd4…`; for a MIG slice, the slice's own UUID."""
    model: str
    """Marketing name, for example `NVIDIA H100 80GB HBM3`."""
    pci: str = ""
    """PCI bus ID of the physical GPU."""
    instance: str = ""
    """GPU instance ID of a MIG slice; empty for a whole GPU."""
    problem: str = ""
    """The reason why the GPU cannot be read, for example because it is lost. In this case, all values below are None
    except `xids`, which contains the errors that the driver reported earlier."""
    utilization: float | None = None
    """Fraction of time that the GPU was busy, from 0 to 1."""
    memory_free: int | None = None
    """Bytes."""
    memory_used: int | None = None
    """Bytes."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    clock: float | None = None
    """Current SM clock as a fraction of the maximum SM clock, 0 to 1."""
    slowdowns: frozenset[str] = frozenset()
    """Active reasons for a reduced clock, as named by DCGM: power_cap, hw_slowdown, sw_thermal, hw_thermal,
    hw_power_brake."""
    xids: tuple[int, ...] = ()
    """XID errors that the driver has reported since the previous reading."""
    ecc_errors: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_failed: bool | None = None
    """Whether the GPU could not remap a faulty row in its memory."""

    @property
    def name(self) -> str:
        """The device as users specify it in `devices`: `0`, or `0:3` for a MIG slice."""
        if self.index < 0:
            return self.uuid
        return f"{self.index}:{self.instance}" if self.instance else str(self.index)


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """All monitored GPUs at one point in time."""

    at: float
    """The time at which the reading ended, in seconds on the monotonic clock."""
    gpus: tuple[GpuReading, ...] = ()
    """Monitored GPUs, sorted by index and instance. A device that was listed before but is now missing has a
    `problem`."""
    problem: str = ""
    """The reason why the driver cannot be read at all; empty if it can be read or if nothing is monitored."""
    note: str = ""
    """Which GPUs are not monitored and why, for example because no driver is installed. This note does not indicate a
    problem."""
    is_starting: bool = False
    """Whether the problem is only that the driver, which may take a long time to start, has not returned its first
    reading yet."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The engine at one point in time."""

    at: float
    """The time at which the reading ended, in seconds on the monotonic clock."""
    reachable: bool = False
    """False if the engine refuses connections."""
    problem: str = ""
    """The reason why the health check failed; empty if it passed."""
    page_problem: str = ""
    """The reason why the metrics page contains no usable values; empty if it contains some."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """Maps signals (`lbctl.signals.signal.SIGNALS`) to values."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Maps counters (`lbctl.signals.signal.COUNTERS`) to values."""
    started_at: float | None = None
    """Start time of the engine process as a Unix timestamp, if the page contains it."""
    restarted: bool = False
    """Whether a counter has decreased since the previous reading because the engine restarted."""
    by_steps: bool = False
    """Whether `progress` changes with each step of the engine, not only when a request ends."""

    @property
    def in_flight(self) -> int | None:
        """Number of running and waiting requests in the engine; None if the page does not report running requests."""
        if not self.reachable:
            return 0
        if "running" not in self.signals:
            return None
        return int(sum(self.signals.get(name, 0.0) for name in ("running", "queue", "deferred")))

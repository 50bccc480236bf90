"""Readings for tests of the agent, and a replica that the judge observes once per second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbctl.agent import judge
from lbctl.agent.assessment import Assessment
from lbctl.agent.memory import Memory
from lbctl.agent.readings import EngineReading, GpuReading, GpuReadings
from lbctl.agent.settings import AgentSettings
from lbctl.ir.address import Address

IDLE: Mapping[str, float] = {"running": 0, "queue": 0, "progress": 100}
BUSY: Mapping[str, float] = {"running": 2, "queue": 1, "progress": 100}


def settings(**changes: Any) -> AgentSettings:
    fixed = {
        "engine": "http://127.0.0.1:8000",
        "kind": "vllm",
        "bind": Address("127.0.0.1", 9500),
        "check_bind": Address("127.0.0.1", 9501),
        "state": "/nonexistent",
    }
    return AgentSettings(**{**fixed, **changes})


def gpu(index: int = 0, **changes: Any) -> GpuReading:
    values = {"memory_free": 8 << 30, "memory_used": 72 << 30, "clock": 1.0, "ecc_errors": 3, "remap_failed": False}
    return GpuReading(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", **{**values, **changes})


def lost_gpu(index: int = 0, **changes: Any) -> GpuReading:
    return GpuReading(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", problem="the GPU is lost", **changes)


def engine(at: float, **changes: Any) -> EngineReading:
    values = {"reachable": True, "signals": IDLE, "counters": {"finished": 7.0}, "by_steps": True}
    return EngineReading(at, **{**values, **changes})


def down(at: float) -> EngineReading:
    return EngineReading(at, problem="/health: connection refused", page_problem="connection refused")


class Replica:
    """A replica with its agent. Each observation is one second after the previous one."""

    def __init__(self, memory: Memory | None = None, **changes: Any) -> None:
        self.settings = settings(**changes)
        self.memory = memory or Memory()
        self.now = 1000.0

    def see(
        self, *gpus: GpuReading, driver: str = "", is_starting: bool = False, is_down: bool = False, **changes: Any
    ) -> Assessment:
        """Observe these GPUs (default: one good GPU), and an engine with these changes to a good, idle one."""
        self.now += 1
        readings = GpuReadings(self.now, gpus or (gpu(),), problem=driver, is_starting=is_starting)
        reading = down(self.now) if is_down else engine(self.now, **changes)
        self.memory, assessment = judge.step(self.settings, self.memory, readings, reading, self.now)
        return assessment

    def request(self) -> str:
        """Return the kind of the request that the agent would send now."""
        return judge.wants_request(self.settings, self.memory, self.now)

    def answer(self, problem: str = "") -> str:
        """Answer the request that the agent sends now, and return its kind."""
        kind = judge.wants_request(self.settings, self.memory, self.now)
        assert kind, "the agent sends no request"
        self.memory = judge.requested(self.memory, kind, problem, self.now)
        return kind

    def drain(self) -> None:
        self.memory = judge.drain(self.memory, self.now, is_saved=True)

    def readmit(self) -> None:
        self.memory = judge.readmit(self.memory)


def codes(assessment: Assessment) -> list[str]:
    return [reason.code for reason in assessment.reasons]

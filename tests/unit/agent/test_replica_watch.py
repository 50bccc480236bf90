"""The watch of a replica: the age of its assessment, drains, and requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lbctl.agent import replica_watch
from lbctl.agent.assessment import Assessment
from lbctl.agent.memory import Memory, RequestKind
from lbctl.agent.readings import EngineReading, GpuReadings
from lbctl.agent.replica_watch import DrainResult, ReplicaWatch
from tests.support.agent import settings


class Parts:
    """GPUs, an engine and a clock that a test controls; they record the requests that the watch sends."""

    def __init__(self) -> None:
        self.now = 100.0
        self.running = 0.0
        self.problem = ""
        self.gpus_are_read = True
        self.started_at = 50.0
        self.sent: list[RequestKind] = []
        self.answers: asyncio.Event | None = None
        """Set when the engine answers requests; None: at once."""

    def clock(self) -> float:
        return self.now

    def latest(self, now: float) -> GpuReadings | None:
        return GpuReadings(now, note="no GPU") if self.gpus_are_read else None

    async def read(self) -> EngineReading:
        self.now += 1.0
        signals = {"running": self.running, "progress": self.now}
        counters = {"finished": 0.0}
        return EngineReading(
            self.now, True, self.problem, signals=signals, counters=counters, started_at=self.started_at
        )

    async def send(self, kind: RequestKind = "probe") -> str:
        self.sent.append(kind)
        if self.answers is not None:
            await self.answers.wait()
        return ""


def _watch(parts: Parts, **changes: Any) -> ReplicaWatch:
    return ReplicaWatch(settings(**changes), parts, parts, parts, Memory(), lambda memory: memory, parts.clock)


def _run(script: Callable[[Parts, ReplicaWatch], Coroutine[Any, Any, None]], **changes: Any) -> None:
    async def run() -> None:
        parts = Parts()
        async with asyncio.timeout(60):
            await script(parts, _watch(parts, **changes))

    asyncio.run(run())


def _state(watch: ReplicaWatch) -> str:
    return watch.health.assessment.state


def _messages(assessment: Assessment) -> list[str]:
    return [reason.message for reason in assessment.reasons]


def test_replica_is_unhealthy_before_the_first_complete_reading() -> None:
    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        assert _state(watch) == "unhealthy"
        parts.gpus_are_read = False
        await watch.read()
        assert _messages(watch.health.assessment) == ["not read yet"]
        parts.gpus_are_read = True
        await watch.read()
        assert _state(watch) == "healthy"

    _run(script)


def test_old_assessment_counts_as_unhealthy() -> None:
    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        await watch.read()
        parts.now += 5.0
        assert _state(watch) == "healthy"
        parts.now += 2.0
        assert _state(watch) == "unhealthy"
        assert _messages(watch.health.assessment) == ["the agent has not read the engine for 7 s"]
        await watch.read()
        assert _state(watch) == "healthy"

    _run(script)


def test_drain_is_reported_at_once_and_ends_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_watch, "_DRAIN_POLL", 0.0)

    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        parts.running = 2.0
        await watch.read()
        drain = asyncio.create_task(watch.drain(300.0))
        await asyncio.sleep(0)
        assert _state(watch) == "draining"
        await watch.read()
        await asyncio.sleep(0)
        assert not drain.done()
        assert watch.in_flight == 2
        parts.running = 0.0
        for _ in range(2):
            await watch.read()
        assert await drain == DrainResult(True, 3.0, 0)

    _run(script)


def test_drain_waits_until_clients_have_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_watch, "_DRAIN_POLL", 0.0)

    async def script(_parts: Parts, watch: ReplicaWatch) -> None:
        await watch.read()
        watch.answered("10.0.0.1")
        drain = asyncio.create_task(watch.drain(300.0))
        await asyncio.sleep(0)
        for _ in range(3):
            await watch.read()
            await asyncio.sleep(0)
            assert not drain.done()
            watch.answered("10.0.0.1")
        assert (await drain).drained

    _run(script)


def test_wait_for_a_drain_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_watch, "_DRAIN_POLL", 0.0)

    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        parts.running = 2.0
        await watch.read()
        drain = asyncio.create_task(watch.drain(1.5))
        await asyncio.sleep(0)
        await watch.read()
        await watch.read()
        assert await drain == DrainResult(False, 2.0, 2)
        assert _state(watch) == "draining"

    _run(script)


def test_readmit_ends_a_drain_and_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_watch, "_DRAIN_POLL", 0.0)

    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        parts.running = 2.0
        await watch.read()
        drain = asyncio.create_task(watch.drain(300.0))
        await asyncio.sleep(0)
        watch.readmit()
        assert _state(watch) == "healthy"
        assert (await drain).ended

    _run(script)


def test_fresh_engine_is_warmed_up_with_requests() -> None:
    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        await watch.read()
        assert _state(watch) == "warming_up"
        for _ in range(3):
            await asyncio.sleep(0)
            await watch.read()
        assert parts.sent == ["warmup", "warmup"]
        assert _state(watch) == "healthy"

    _run(script, warmup=2)


def test_late_answer_of_a_former_process_does_not_count() -> None:
    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        former = parts.answers = asyncio.Event()
        await watch.read()
        await asyncio.sleep(0)
        parts.started_at, parts.answers = 100.0, asyncio.Event()
        await watch.read()
        await asyncio.sleep(0)
        assert parts.sent == ["warmup", "warmup"], "the new process gets its request at once"
        former.set()
        for _ in range(3):
            await asyncio.sleep(0)
        await watch.read()
        assert _state(watch) == "warming_up"
        parts.answers.set()
        for _ in range(3):
            await asyncio.sleep(0)
        await watch.read()
        assert _state(watch) == "healthy"

    _run(script, warmup=1)


def test_state_has_the_time_of_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(parts: Parts, watch: ReplicaWatch) -> None:
        await watch.read()
        began = watch.health.since
        monkeypatch.setattr("lbctl.agent.replica_watch.time.time", lambda: began + 60)
        await watch.read()
        assert watch.health.since == began
        parts.problem = "/health: status 503"
        await watch.read()
        assert watch.health.since == began + 60

    _run(script)

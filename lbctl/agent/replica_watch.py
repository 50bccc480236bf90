"""Monitors one replica: polls its GPUs and engine once a second, and evaluates its health.

The agent also sends warm-up requests and probes, and drains the replica.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from lbctl.agent import judge
from lbctl.agent.assessment import Assessment, Reason
from lbctl.agent.draining import DEFAULT_THRESHOLD, Drain
from lbctl.agent.memory import Memory, RequestKind
from lbctl.agent.metrics_page import XidCounts
from lbctl.agent.readings import EngineReading, GpuReadings
from lbctl.agent.settings import AgentSettings
from lbctl.runtime import log

INTERVAL = 1.0
"""Seconds between two readings."""
MAX_AGE = 5.0
"""Maximum age of the newest assessment, in seconds, before the replica counts as unhealthy."""
_NUMBER = re.compile(r"\d+")
_DRAIN_POLL = 0.2
"""Seconds between checks for the end of a drain."""


class GpuSource(Protocol):
    """A source of GPU readings."""

    def latest(self, now: float) -> GpuReadings | None:
        """Return the newest reading, or None before the first reading."""


class EngineSource(Protocol):
    """A source of engine readings."""

    async def read(self) -> EngineReading:
        """Poll the engine. Never raises."""


class RequestSender(Protocol):
    """Sends requests to the engine."""

    async def send(self, kind: RequestKind = "probe") -> str:
        """Send a request, and return why it failed, or an empty string if it succeeded. Never raises."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the replica."""

    assessment: Assessment
    since: float
    """Unix timestamp of the time at which the state began."""


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of waiting for a drain."""

    drained: bool
    """Whether the drain is complete."""
    waited: float
    """Time spent waiting, in seconds."""
    in_flight: int | None
    """Number of requests still in flight, or None if unknown."""
    ended: bool = False
    """Whether the drain was ended by `readmit` or by an engine restart."""


class ReplicaWatch:
    """The state of the agent. All methods run on one event loop."""

    def __init__(
        self,
        settings: AgentSettings,
        gpus: GpuSource,
        engine: EngineSource,
        requests: RequestSender,
        memory: Memory,
        save: Callable[[Memory], Memory],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`save` saves the remembered faults. `clock` is the clock of the readings, in seconds."""
        self._settings = settings
        self._gpu_source = gpus
        self._engine_source = engine
        self._requests = requests
        self._memory = memory
        self._save = save
        self._clock = clock
        self._drain = Drain()
        self._health = Health(judge.UNREAD, time.time())
        self._assessed_at: float | None = None
        self._request: asyncio.Task[None] | None = None
        """The request in progress."""
        self.gpus: GpuReadings | None = None
        self.engine: EngineReading | None = None
        self.xids = XidCounts()

    async def run(self) -> None:
        """Poll once a second until cancelled."""
        while True:
            due = self._clock() + INTERVAL
            await self.read()
            await asyncio.sleep(max(0.0, due - self._clock()))

    async def read(self) -> None:
        """Poll the engine and the GPUs once, and evaluate the replica's health."""
        self.engine = await self._engine_source.read()
        self._drain.read(self.engine)
        now = self._clock()
        gpus = self._gpu_source.latest(now)
        if gpus is None:
            return
        self.gpus = gpus
        self.xids.add(gpus)
        restarts = self._memory.restarts
        self._judge()
        if self._request is not None and self._memory.restarts != restarts:
            self._request.cancel()  # its response would apply to the previous process
            self._request = None
        is_free = self._request is None or self._request.done()
        if is_free and (kind := judge.wants_request(self._settings, self._memory, now)):
            self._request = asyncio.create_task(self._send(kind))

    @property
    def health(self) -> Health:
        """The current health. If the newest assessment is too old, the replica is unhealthy."""
        if self._assessed_at is None:
            return self._health
        age = self._clock() - self._assessed_at
        if age <= MAX_AGE:
            return self._health
        found = self._health.assessment
        late = Reason("engine", f"the agent has not read the engine for {age:.0f} s")
        state = found.state if found.state == "draining" else "unhealthy"
        since = self._health.since if state == found.state else time.time() - age
        return Health(replace(found, state=state, reasons=(late, *found.reasons)), since)

    @property
    def in_flight(self) -> int | None:
        """Number of requests in the engine, or None if unknown."""
        return self._drain.in_flight

    def answered(self, client: str, threshold: int = DEFAULT_THRESHOLD) -> None:
        """Record a response to a client's health check or agent check. For `threshold`, see `Drain`."""
        self._drain.answered(client, self._clock(), threshold)

    async def drain(self, wait: float, *, is_saved: bool = True) -> DrainResult:
        """Begin a drain, and wait up to `wait` seconds for it to complete. After that, it continues in the background.

        `is_saved` is whether the drain survives an agent restart.
        """
        began = self._clock()
        self._memory = judge.drain(self._memory, began, is_saved)
        self._drain.begin(began)
        self._judge()
        while True:
            now = self._clock()
            waited = now - began
            if self._drain.begun_at is None:
                return DrainResult(False, waited, self.in_flight, ended=True)
            is_drained = self._drain.is_drained(now)
            if is_drained or waited >= wait:
                return DrainResult(is_drained, waited, self.in_flight)
            await asyncio.sleep(_DRAIN_POLL)

    def readmit(self) -> None:
        """End a drain, and forget all remembered faults."""
        self._memory = judge.readmit(self._memory)
        self._drain.end()
        self._judge()

    def _judge(self) -> None:
        """Evaluate the newest readings, if any."""
        if self.gpus is None or self.engine is None:
            return
        now = self._clock()
        memory, assessment = judge.step(self._settings, self._memory, self.gpus, self.engine, now)
        self._memory = self._save(memory)
        if memory.draining_since is None:
            self._drain.end()
        before, self._assessed_at = self._health, self.engine.at
        since = before.since if assessment.state == before.assessment.state else time.time()
        self._health = Health(assessment, since)
        if _subject(assessment) != _subject(before.assessment):
            _log(assessment)

    async def _send(self, kind: RequestKind) -> None:
        problem = await self._requests.send(kind)
        self._memory = judge.requested(self._memory, kind, problem, self._clock())


def _subject(assessment: Assessment) -> object:
    """Return the parts whose changes are logged. A message is not logged again if only its numbers have changed."""
    texts = (*(reason.message for reason in assessment.reasons), *assessment.notes)
    return assessment.state, {_NUMBER.sub("", text) for text in texts}


def _log(assessment: Assessment) -> None:
    level = logging.WARNING if assessment.state == "unhealthy" else logging.INFO
    log.event(
        f"the replica is {assessment.state.replace('_', ' ')}",
        level,
        reasons="; ".join(reason.message for reason in assessment.reasons) or None,
        notes="; ".join(assessment.notes) or None,
    )

"""Saves the control loop's output for a restart and for other members, and its decisions in the audit log.

Weights are valid for one minute, because the evidence for them becomes stale. An ejected replica stays ejected until it
has proved to be healthy again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Protocol

from lbctl.control.loop_output import LoopOutput
from lbctl.runtime import log
from lbctl.runtime.guard import end_tasks
from lbctl.serve.telemetry.control_loop import ControlLoop
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.store.interface import StoreError
from lbctl.store.lease import Authority
from lbctl.store.saved import SavedState

_WEIGHTS_MAX_AGE = 60.0
"""Seconds for which an earlier process's weights are used."""
_SAVE_CHANGED = 1.0
"""Minimum time between two periodic saves, in seconds."""
_SAVE_UNCHANGED = 20.0
"""Seconds before an unchanged output is rewritten, so that its time stays recent."""
_PUBLISH_INTERVAL = 0.1
"""Minimum time between two publications if other members follow the written output, in seconds."""
_BYTES_PER_SECOND = 500_000
"""Maximum number of bytes per second that publications may add to the store, because it may keep every version."""
_WRITE_TIMEOUT = 0.2
"""Maximum time in seconds that a publication waits until other members can read it."""


async def saved_loop_output(state: SavedState, now: float) -> LoopOutput:
    """Load the control loop's output from an earlier process, without weights that are too old.

    `now`: the current time, in seconds since the epoch. Raises StoreError.
    """
    record = await state.loop_output()
    if record is None:
        return LoopOutput()
    output, at = record
    return output if now - at <= _WEIGHTS_MAX_AGE else replace(output, weights={})


class DecisionSaver:
    """Saves the control loop's decisions."""

    def __init__(
        self, state: SavedState, loop: ControlLoop, audit: DecisionAudit, saved: LoopOutput, authority: Authority
    ) -> None:
        """`saved`: the output in the saved state.

        Changes in replicas' states are recorded if the `authority` permits this process to act.
        """
        self._state = state
        self._loop = loop
        self._audit = audit
        self._authority = authority
        self._failure = log.LastingFailure("the weights and ejections are saved again")
        self._writing = asyncio.Lock()
        self._saved = saved
        self._saved_at = 0.0
        self._size = 0

    @property
    def is_writing(self) -> bool:
        """Whether an output is currently being written."""
        return self._writing.locked()

    @property
    def saved_at(self) -> float:
        """Time at which the last output was written, in seconds since the epoch; 0 before the first one."""
        return self._saved_at

    @property
    def size(self) -> int:
        """Length of the last written output in bytes."""
        return self._size

    def restart(self, output: LoopOutput) -> None:
        """Treat the decisions in this output as recorded, and save it again because the store may not have it."""
        self._audit.adopt(output)
        self._saved, self._saved_at = LoopOutput(), 0.0

    def note_state(self, action: str, pool: str, replica: str, reason: str) -> None:
        """Record that a replica has gone down or recovered, if this process records decisions."""
        if self._authority.acts:
            self._audit.note_state(action, pool, replica, reason)

    async def run(self) -> None:
        """Save the decisions until the task is cancelled."""
        while True:
            await asyncio.sleep(_SAVE_CHANGED)
            await self.save()

    async def save(self) -> None:
        """Record the decisions, and save the output if it is due."""
        await self._audit.save()
        if self._needs_saving(self._loop.output, time.time()):
            try:
                await self.save_output(self._loop.output)
            except StoreError as error:
                self._failure.failed(
                    f"the weights and ejections cannot be saved, and would be lost on a restart: {error}"
                )
            else:
                self._failure.succeeded()

    async def save_output(self, output: LoopOutput) -> None:
        """Save this output immediately. Raises StoreError."""
        async with self._writing:
            now = time.time()
            self._size = await self._state.save_loop_output(output, now)
            self._saved, self._saved_at = output, now

    def _needs_saving(self, output: LoopOutput, now: float) -> bool:
        outdated = now - self._saved_at >= _SAVE_UNCHANGED
        return output != self._saved or (outdated and bool(output.weights or output.ejections))


class WriteAhead(Protocol):
    """A step that precedes publishing the control loop's output."""

    async def wait(self) -> None:
        """Wait until the next output may be published."""

    async def write(self, output: LoopOutput) -> None:
        """Prepare to publish this output."""

    async def end(self) -> None:
        """Cancel pending work."""


class NoWriteAhead:
    """Used by the only member: outputs are saved after they have been published."""

    async def wait(self) -> None:
        """Return immediately, because the next output may be published."""

    async def write(self, output: LoopOutput) -> None:
        """Do nothing, because outputs are not written first."""

    async def end(self) -> None:
        """Do nothing, because there is no pending work."""


class StoreWriteAhead:
    """Used by one of several members: each output is written first, so that followers know all that the proxies have.

    A store that does not respond delays a publication only briefly.
    """

    def __init__(self, saver: DecisionSaver, authority: Authority) -> None:
        """Nothing is written without the `authority` to act."""
        self._saver = saver
        self._authority = authority
        self._writes: set[asyncio.Task[None]] = set()
        """A write for which a publication has stopped waiting."""

    async def wait(self) -> None:
        """Wait until the store may be written again."""
        pace = max(_PUBLISH_INTERVAL, self._saver.size / _BYTES_PER_SECOND)
        await asyncio.sleep(min(pace, max(0.0, self._saver.saved_at + pace - time.time())))

    async def write(self, output: LoopOutput) -> None:
        """Write this output, and wait at most `_WRITE_TIMEOUT` for the result."""
        if not self._authority.acts or self._saver.is_writing:
            return
        writing = asyncio.create_task(self._saver.save_output(output))
        self._writes.add(writing)
        writing.add_done_callback(self._written)
        await asyncio.wait([writing], timeout=_WRITE_TIMEOUT)

    async def end(self) -> None:
        """Cancel a write that is still in progress."""
        await end_tasks(self._writes)

    def _written(self, writing: asyncio.Task[None]) -> None:
        """Handle a write's result. If the write failed, the next periodic save retries it and logs the failure."""
        self._writes.discard(writing)
        if not writing.cancelled():
            writing.exception()

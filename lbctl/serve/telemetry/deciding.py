"""Runs the published fleet's control loop and publishes its decisions.

A new output is published as soon as the previous one has been sent, so that several decisions in quick succession
result in one snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import frozen
from lbctl.runtime.guard import Work
from lbctl.serve.fleet.live import LiveFleet
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry.control_loop import ControlLoop, RequestsOf
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.serve.telemetry.saving import WriteAhead
from lbctl.store.audit import AuditLog
from lbctl.store.lease import Authority

_UNSURE = 0.1
"""Seconds between checks of whether this process may make decisions again."""


@dataclass(frozen=True, slots=True)
class Control:
    """The control loop, and the parts that publish, save and record its decisions."""

    loop: ControlLoop
    """Makes decisions based on the scraper's reports."""
    changed: asyncio.Event
    """Set when the loop's output has changed."""
    audit: DecisionAudit
    """Collects the decisions for the audit log."""

    @classmethod
    def of(
        cls,
        saved: LoopOutput,
        audit: AuditLog,
        latency: LatencyMetrics,
        requests_of: RequestsOf,
        ejected: Callable[[], Mapping[str, frozenset[str]]],
    ) -> Control:
        """Return a loop that continues from the decisions in `saved`; `ControlLoop` documents the other arguments."""
        decisions, changed = DecisionAudit(audit), asyncio.Event()
        decisions.adopt(saved)
        loop = ControlLoop(changed.set, latency, saved, requests_of=requests_of, audit=decisions, ejected=ejected)
        return cls(loop, changed, decisions)


class DecisionPublisher:
    """Publishes the control loop's output."""

    def __init__(
        self, live: LiveFleet, control: Control, latency: LatencyMetrics, authority: Authority, ahead: WriteAhead
    ) -> None:
        """Nothing is published without the `authority` to make decisions."""
        self._live = live
        self._loop = control.loop
        self._changed = control.changed
        self._latency = latency
        self._authority = authority
        self._ahead = ahead

    def tasks(self) -> Mapping[str, Work]:
        """Return the tasks that make and publish decisions, by name."""
        return {"control loop": self._loop.run, "publish decisions": self._publish}

    def use_fleet(self, served: PublishedFleet) -> None:
        """From now on, control this fleet's pools."""
        self._loop.use_topology(served.composed.whole.topology)
        self._loop.freeze(frozen(served.composed.overrides))

    def restart(self) -> None:
        """From now on, make decisions, starting with the active output, which was decided by another process."""
        self._loop.adopt(self._live.inputs.decisions)
        self._changed.clear()
        if self._live.served is not None:
            self.use_fleet(self._live.served)

    async def _publish(self) -> None:
        try:
            while True:
                await self._changed.wait()
                await self._publish_output()
        finally:
            await self._ahead.end()

    async def _publish_output(self) -> None:
        await self._ahead.wait()
        self._changed.clear()
        output = self._loop.output
        await self._ahead.write(output)
        while not self._authority.decides:
            await asyncio.sleep(_UNSURE)
        self._latency.sending(self._loop.sampled_at)
        await self._live.apply(replace(self._live.inputs, decisions=output), "signals", save=False)
        self._latency.sent()

"""Builds the parts of the control plane and connects them, once, into a frozen `Services`.

Each part gets what it needs as arguments; nothing is set on it afterwards. `app` runs what stands here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.gauges import Gauges
from lbctl.serve.api.views import Views
from lbctl.serve.drivers.eligibility import driven
from lbctl.serve.drivers.in_flight import InFlight
from lbctl.serve.drivers.supervisor import DriverSupervisor
from lbctl.serve.errors import CannotListenError
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.fleet.watch import Watch
from lbctl.serve.guard import Guard, Work
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.operator.overrides import OverrideService
from lbctl.serve.settings import Options
from lbctl.serve.state.records import SavedFleet
from lbctl.serve.state.saved import SavedState
from lbctl.serve.telemetry.service import Telemetry, earlier
from lbctl.targets.load import Loaded
from lbctl.xds.protocol.node_status import NodeStatus

Opened = Callable[[Loaded, bool], Awaitable[None]]
"""Called for the first fleet before its resources are built (False) and when they can be served (True)."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What an earlier process has left in the state."""

    fleet: SavedFleet | None = None
    drains: Mapping[tuple[str, str], float] | None = None
    """(pool, replica) → when its drain began, in seconds since the epoch."""
    output: LoopOutput = field(default_factory=LoopOutput)
    overrides: Overrides = ()


@dataclass(frozen=True, slots=True)
class Services:
    """The running parts of one process."""

    guard: Guard
    watch: Watch
    publisher: Publisher
    reconciler: Reconciler
    telemetry: Telemetry
    overrides: OverrideService
    supervisor: DriverSupervisor
    in_flight: InFlight
    views: Views

    def tasks(self) -> Mapping[str, Work]:
        """Task → what it runs, for as long as the process lives; but for those that follow files and clocks."""
        return {
            **self.telemetry.tasks(),
            "expiry of overrides": self.overrides.run,
            "drivers": self.supervisor.run,
            "requests in flight": self.in_flight.run,
        }


async def saved(state: SavedState) -> Saved:
    """Read what an earlier process has left. Raises StoreError."""
    return Saved(
        await state.last_fleet(), await state.drains(), await earlier(state, time.time()), await state.overrides()
    )


def build(
    options: Options,
    endpoints: Endpoints,
    metrics: Metrics,
    nodes: NodeStatus,
    state: SavedState,
    before: Saved,
    opened: Opened,
) -> Services:
    """Connect the parts. Nothing listens, reads files or decides yet."""
    events = EventLog()
    guard = Guard(partial(_task_failed, metrics, events), fatal=(CannotListenError,))
    publisher = Publisher(metrics, before.drains or {}, driven, guard)
    if before.fleet is not None:
        publisher.discover.seed(before.fleet.discovered)
    watch = Watch(options.paths)
    reconciler = Reconciler(options.paths, publisher, watch, metrics, state, opened, events)
    in_flight = InFlight()
    telemetry = Telemetry(publisher, reconciler, metrics.stages, state, before.output, in_flight.of, guard)
    overrides = OverrideService(publisher, reconciler, telemetry.loop, state, before.overrides)
    supervisor = DriverSupervisor(telemetry.eject, guard, dry_run=options.dry_run)
    publisher.subscribe("drivers", supervisor.follow)
    publisher.subscribe("requests in flight", in_flight.follow)
    publisher.subscribe("events", events.follow)
    metrics.registry.register(Gauges(publisher, telemetry, time.monotonic))
    views = Views(options, endpoints, publisher, reconciler, nodes, metrics, telemetry, overrides, supervisor, events)
    return Services(guard, watch, publisher, reconciler, telemetry, overrides, supervisor, in_flight, views)


def _task_failed(metrics: Metrics, events: EventLog, task: str) -> None:
    metrics.task_failed(task)
    events.task_failed(task)


async def build_from(
    options: Options, endpoints: Endpoints, metrics: Metrics, nodes: NodeStatus, state: SavedState, opened: Opened
) -> tuple[Services, Saved]:
    """`build` with what the state holds. Raises StoreError."""
    before = await saved(state)
    return build(options, endpoints, metrics, nodes, state, before, opened), before

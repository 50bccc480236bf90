"""The faults that the demo injects.

Each fault affects the same replica in every group. Faults are started by key presses, or by a script that covers the
whole duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lbctl.demo.fleet import MEMBERS, Site
from lbctl.demo.replica import PacedReplica

THROTTLED_TO = 0.4
"""Speed of a throttled replica, relative to its normal speed."""


@dataclass(frozen=True, slots=True)
class DemoFault:
    """A kind of fault and the replica that it affects."""

    kind: str
    key: str
    """Keyboard key that starts and ends the fault."""
    replica: str
    effect: str
    """Description of the fault, as a phrase."""
    span: tuple[float, float]
    """Start and end times in the script, as fractions of the duration."""


FAULTS = (
    DemoFault("throttle", "t", "h100-0", "a GPU that runs at 40 % of its speed", (0.1, 0.3)),
    DemoFault("stale", "s", "a100-1", "a metrics endpoint that does not respond", (0.15, 0.28)),
    DemoFault("kill", "k", "a100-0", "a process that has died", (0.33, 0.45)),
    DemoFault("wedge", "w", "h100-1", "an engine that makes no progress but looks healthy", (0.5, 0.95)),
)
BY_KEY: Mapping[str, DemoFault] = {fault.key: fault for fault in FAULTS}


@dataclass(slots=True)
class Episode:
    """A fault, from its start to its end. Times are in seconds on the monotonic clock."""

    fault: DemoFault
    began: float
    ended: float | None = None
    share_before: float | None = None
    """The replica's share in the adaptive pool when the fault began."""
    reacted: float | None = None
    """Time at which `serve` lowered this share, if it has done so."""


@dataclass(slots=True)
class Faults:
    """The faults of a demo site, and their history."""

    site: Site
    share: Callable[[str], float | None] = lambda _: None
    """Returns a replica's share in the adaptive pool, as decided by `serve`."""
    episodes: list[Episode] = field(default_factory=list)

    def active(self, fault: DemoFault) -> Episode | None:
        """Return the fault's active episode, or None if it is not active."""
        return next((item for item in self.episodes if item.fault is fault and item.ended is None), None)

    def of_replica(self, name: str) -> str:
        """Return the kinds of faults that currently affect a replica."""
        return ", ".join(fault.kind for fault in FAULTS if fault.replica == name and self.active(fault))

    async def toggle(self, fault: DemoFault) -> None:
        """Start the fault, or end it if it is already active."""
        episode = self.active(fault)
        if episode is None:
            self.episodes.append(Episode(fault, time.monotonic(), share_before=self.share(fault.replica)))
        else:
            episode.ended = time.monotonic()
        place = next(index for index, member in enumerate(MEMBERS) if member.name == fault.replica)
        for group in self.site.groups.values():
            await _apply(fault.kind, group[place], begins=episode is None)

    async def end_all(self) -> None:
        """End all faults."""
        for fault in FAULTS:
            if self.active(fault):
                await self.toggle(fault)


async def _apply(kind: str, replica: PacedReplica, *, begins: bool) -> None:
    match kind:
        case "throttle":
            replica.throttle(THROTTLED_TO if begins else 1.0)
        case "wedge":
            replica.wedge(begins)
        case "stale":
            replica.silent = begins
        case "kill" if begins:
            await replica.stop()
        case _:
            await replica.start()

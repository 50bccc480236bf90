"""The interface for drivers of running proxies, and their status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from lbctl.control.compose import ForProxy
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.serve.fleet.publisher import PublishedFleet

State = Literal["SYNCED", "WAITING", "FAILING", "NOT DRIVEN"]
Ejected = Callable[[], Mapping[str, frozenset[str]]]
"""Returns the replicas, by pool, ejected by the active checks of `lbctl serve`."""


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """Whether one proxy is in sync with the published fleet."""

    state: State = "WAITING"
    """Whether the proxy has the published fleet."""
    version: str = ""
    """Version of the snapshot that the proxy has; empty before the first one."""
    reason: str = ""
    """Reason why the proxy is not in sync; empty if it is in sync."""
    reloads: int = 0
    """Number of reloads caused by lbctl."""
    leaving: int = 0
    """Number of removed replicas that still have requests."""
    at: float = 0.0
    """Time of the last attempt, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class DriverRow:
    """The status of a proxy that needs a driver, even if it does not have one."""

    proxy: str
    """Name of the proxy under `proxies` in the fleet."""
    kind: str
    """Kind of the proxy."""
    connected: bool
    """Whether the proxy has a working driver."""
    since: float
    """Time of the last attempt, or of the supervisor's start, in seconds since the epoch."""
    state: State
    """Whether the proxy has the published fleet."""
    reason: str
    """Reason why the proxy is not in sync; empty if it is in sync."""
    last_good: str
    """Version of the snapshot that the proxy has; empty before the first one."""
    reloads: int
    """Number of reloads caused by lbctl."""
    leaving: int
    """Number of removed replicas that still have requests."""

    @classmethod
    def of(cls, proxy: Proxy, status: DriverStatus, since: float) -> DriverRow:
        """Return a proxy's row. `since`: the time at which the supervisor started, in seconds since the epoch."""
        return cls(
            proxy=proxy.name,
            kind=proxy.kind,
            connected=status.state in ("SYNCED", "WAITING"),
            since=status.at or since,
            state=status.state,
            reason=status.reason,
            last_good=status.version,
            reloads=status.reloads,
            leaving=status.leaving,
        )


class Driver(Protocol):
    """Applies each published fleet to one running proxy."""

    @property
    def proxy(self) -> Proxy:
        """The proxy that the driver controls."""
        ...

    @property
    def status(self) -> DriverStatus:
        """The proxy's sync state."""
        ...

    @property
    def composed(self) -> ForProxy | None:
        """The snapshot composed only for this proxy; None if the proxy gets the published snapshot unchanged."""

    @property
    def accepted(self) -> View | None:
        """The part of `composed` that the proxy has applied; None before the first one, or if `composed` is None."""

    def update(self, served: PublishedFleet) -> None:
        """From now on, apply this fleet to the proxy. The method returns immediately."""

    def checks_changed(self) -> None:
        """Apply changes in the ejections by the active checks of `lbctl serve`. The method returns immediately."""

    async def run(self) -> None:
        """Drive the proxy until the task is cancelled.

        If the task ends for another reason, this is treated as a failure, and a new driver is started.
        """


def as_served(proxy: Proxy, served: PublishedFleet) -> Proxy:
    """Return the proxy with the custom lines from this fleet. Any other change requires a new driver."""
    proxies = served.composed.whole.topology.proxies
    return next((item for item in proxies if item.name == proxy.name), proxy)

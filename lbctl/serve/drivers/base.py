"""The interface of drivers for running proxies, and their status."""

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
"""Returns the replicas, by pool, that the active checks of `lbctl serve` have ejected."""


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """Whether one proxy is in sync with the published fleet."""

    state: State = "WAITING"
    """Whether the proxy has the published fleet."""
    version: str = ""
    """The version of the snapshot that the proxy has; empty before the first."""
    reason: str = ""
    """The reason why the proxy is not in sync; empty if it is in sync."""
    reloads: int = 0
    """Number of reloads that lbctl has caused."""
    leaving: int = 0
    """The number of removed replicas that still have requests."""
    at: float = 0.0
    """The time of the last attempt, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class DriverRow:
    """The status of a proxy that needs a driver, even if it has none."""

    proxy: str
    """The name of the proxy in `proxies` of the fleet."""
    kind: str
    """The kind of the proxy."""
    connected: bool
    """Whether the proxy has a driver that works."""
    since: float
    """The time of the last attempt, or the start of the supervisor, in seconds since the epoch."""
    state: State
    """Whether the proxy has the published fleet."""
    reason: str
    """The reason why the proxy is not in sync; empty if it is in sync."""
    last_good: str
    """The version of the snapshot that the proxy has; empty before the first."""
    reloads: int
    """The number of reloads that lbctl has caused."""
    leaving: int
    """The number of removed replicas that still have requests."""

    @classmethod
    def of(cls, proxy: Proxy, status: DriverStatus, since: float) -> DriverRow:
        """Return the row of a proxy. `since`: the start of the supervisor, in seconds since the epoch."""
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
        """The proxy that it drives."""
        ...

    @property
    def status(self) -> DriverStatus:
        """The sync state of the proxy."""
        ...

    @property
    def composed(self) -> ForProxy | None:
        """The snapshot composed only for this proxy; None if it gets the published snapshot unchanged."""

    @property
    def accepted(self) -> View | None:
        """The part of `composed` that the proxy has applied; None before the first one, or if `composed` is None."""

    def update(self, served: PublishedFleet) -> None:
        """Apply this fleet to the proxy from now on. Returns at once."""

    def checks_changed(self) -> None:
        """Apply changed ejections by the active checks of `lbctl serve`. Returns at once."""

    async def run(self) -> None:
        """Drive the proxy until the task is cancelled.

        If the task ends for another reason, this counts as a failure, and a new driver is started.
        """


def as_served(proxy: Proxy, served: PublishedFleet) -> Proxy:
    """Return the proxy with its custom lines from this fleet. Any other change starts a new driver."""
    proxies = served.composed.whole.topology.proxies
    return next((item for item in proxies if item.name == proxy.name), proxy)

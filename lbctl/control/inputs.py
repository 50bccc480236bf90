"""The control loop's observations of a replica: its signals, and its request counts from the proxies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lbctl.signals.merge import Signals

NEVER = float("-inf")
"""A time before all others. Times are in seconds on the event clock, which never goes backwards."""


class ProxyRequests(NamedTuple):
    """A replica's requests across all proxies that report them."""

    in_flight: int | None = None
    """Requests in flight, or None if no proxy reports them or if WebSocket connections may be among them."""
    answered: int = 0
    """Requests that have ended without an error since this process started."""


UNKNOWN_REQUESTS = ProxyRequests()


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of one replica at a point in time."""

    at: float
    """The time of its newest sample."""
    signals: Signals
    requests: ProxyRequests = UNKNOWN_REQUESTS
    reserves_memory: bool = False
    """Whether the engine reserves GPU memory, which makes free GPU memory meaningless as a signal."""

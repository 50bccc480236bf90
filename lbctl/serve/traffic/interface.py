"""The report from a proxy's traffic source, and the kinds of proxies that have a source.

To add a source, add a module in this package and one line in `POLLED` or `LOGGING`. A source is imported when the first
proxy of its kind is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple, Protocol

from lbctl.control.replica_state import ReplicaCondition
from lbctl.ir.proxies import Proxy
from lbctl.serve.traffic.ledger import Counts, ReplicaKey


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """A proxy's counts since its last report, and its current requests."""

    counts: Mapping[ReplicaKey, Counts] = field(default_factory=dict)
    """Counts since the last report."""
    in_flight: Mapping[ReplicaKey, int] = field(default_factory=dict)
    """Each replica's current number of requests."""
    conditions: Mapping[ReplicaKey, ReplicaCondition] = field(default_factory=dict)
    """The replicas' conditions at this proxy."""
    assigned: Mapping[ReplicaKey, int] = field(default_factory=dict)
    """`in_flight` plus the requests that are queued in the proxy for this specific replica."""
    own_errors: Mapping[str, int] = field(default_factory=dict)
    """Maps each pool to the number of requests that the proxy itself answered with an error, without a replica, since
    its last report."""
    answered: frozenset[ReplicaKey] | None = None
    """Replicas that have started a response with a status below 500 since the last report; None if the proxy does not
    count responses."""
    slots: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Maps each (backend, spare server) pair to the name of the replica that is currently using it."""


class Assigned(NamedTuple):
    """Number of requests that one proxy has for one replica, in flight or waiting."""

    proxy: str
    key: ReplicaKey
    requests: int
    at: float
    """Time at which the proxy reported them, in seconds on the traffic clock."""


class PolledSource(Protocol):
    """Polls the counters of one running proxy."""

    async def poll(self) -> TrafficReport | None:
        """Return the proxy's report; None if the proxy does not respond or its response is unexpected."""


POLLED = {"haproxy": "lbctl.serve.traffic.haproxy:source"}
"""Maps each kind of proxy to the `module:name` of a function that takes a proxy and returns its PolledSource, or None
if it does not have one."""
LOGGING = frozenset({"nginx"})
"""Kinds of proxies whose requests are counted from their traffic log (over syslog)."""
TIMED = frozenset({"haproxy"})
"""Kinds of proxies that log request timers over syslog and whose counts are polled."""


def polled_source(proxy: Proxy) -> PolledSource | None:
    """Return the source that polls this proxy; None if there is none."""
    place = POLLED.get(proxy.kind)
    if place is None:
        return None
    module, _, name = place.partition(":")
    factory: Callable[[Proxy], PolledSource | None] = getattr(import_module(module), name)
    return factory(proxy)

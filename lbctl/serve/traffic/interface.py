"""The report of a traffic source for one kind of proxy, and the kinds that have a source.

To add a source: a module in this package, and one line in `POLLED` or `LOGGING`. A source is imported for the first
proxy of its kind.
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
    """Counts since its last report."""
    in_flight: Mapping[ReplicaKey, int] = field(default_factory=dict)
    """The requests that each replica has now."""
    conditions: Mapping[ReplicaKey, ReplicaCondition] = field(default_factory=dict)
    """Conditions of replicas in this proxy."""
    assigned: Mapping[ReplicaKey, int] = field(default_factory=dict)
    """`in_flight`, and the requests that wait in the proxy for this replica alone."""
    own_errors: Mapping[str, int] = field(default_factory=dict)
    """Pool → the requests that it answered with an error itself, without a replica, since its last report."""
    answered: frozenset[ReplicaKey] | None = None
    """The replicas of which an answer with a status below 500 has begun since its last report; None where the proxy
    does not count answers."""
    slots: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(backend, spare server) → the name of the replica that has its place now."""


class Assigned(NamedTuple):
    """The requests that one proxy has for one replica, in flight or waiting for it."""

    proxy: str
    key: ReplicaKey
    requests: int
    """How many."""
    at: float
    """When the proxy reported them, in seconds on the clock of the traffic."""


class PolledSource(Protocol):
    """Asks one running proxy for its counters."""

    async def poll(self) -> TrafficReport | None:
        """Return what the proxy reports; None where it does not answer, or not as its kind does."""


POLLED = {"haproxy": "lbctl.serve.traffic.haproxy:source"}
"""Kind of proxy → `module:name` of a function of a proxy that returns its PolledSource, or None where it has none."""
LOGGING = frozenset({"nginx"})
"""The kinds of proxies whose traffic log counts their requests, by syslog."""
TIMED = frozenset({"haproxy"})
"""The kinds of proxies that log the timers of their requests by syslog, and are asked for the counts."""


def polled_source(proxy: Proxy) -> PolledSource | None:
    """Return the source that asks this proxy; None where there is none."""
    place = POLLED.get(proxy.kind)
    if place is None:
        return None
    module, _, name = place.partition(":")
    factory: Callable[[Proxy], PolledSource | None] = getattr(import_module(module), name)
    return factory(proxy)

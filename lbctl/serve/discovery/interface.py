"""The interface of a source of replicas: the DNS, a file, or an API.

A source watches the pools whose `discovery` has its kind, and answers for each with all its replicas. It need not check
its answers: `service.DiscoveryService` keeps the last good answer of a source that fails and refuses replicas that no
fleet file could list, and `guard` holds back answers that would remove too many replicas at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Replica
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """The answer of a source for one pool. Times are in seconds since the epoch; None means never."""

    replicas: tuple[Replica, ...] | None = None
    """All replicas, sorted by name, with `drain` set if they are being removed; None before the first answer."""
    answered: float | None = None
    """When the source last got an answer for the pool."""
    error: str = ""
    """Why the last attempt to get an answer failed; empty where it did not."""
    failed: float | None = None
    """When an attempt last failed."""
    key: str = ""
    """The key under which the state saves `saved`; empty where nothing is saved."""
    saved: tuple[str, ...] = ()
    """The answer in the form that the source's `seed` accepts."""
    leaving: frozenset[str] = frozenset()
    """Replicas that the source has announced to end, be they still in the answer or not: their loss needs no
    confirmation."""


@dataclass(frozen=True, slots=True)
class NameState:
    """The state of a DNS name or a Kubernetes service that is watched, as the API reports it.

    Times are in seconds since the epoch; None means never.
    """

    name: str
    """The name; for a service with the prefix `kubernetes` and its namespace."""
    resolvers: tuple[str, ...]
    """The resolvers that are used; empty: the machine's resolvers, or none."""
    pools: tuple[str, ...]
    """The pools that get their replicas from this name."""
    addresses: tuple[str, ...] = ()
    """The usable addresses; without `answered` they come from the saved state."""
    refused: tuple[str, ...] = ()
    """Addresses of the answer that no replica can have."""
    left_out: int = 0
    """How many addresses exceed the largest `max_replicas` of the pools."""
    answered: float | None = None
    """When the last answer came."""
    error: str = ""
    """Why the last query got no answer; empty where it got one."""
    failed: float | None = None
    """When the last failure happened."""


class DiscoverySource(Protocol):
    """A source of replicas.

    Its factory gets a callback, which the source calls in the event loop whenever `answers` has changed. All methods
    are called in the event loop.
    """

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Use the answers that were saved before a restart until there are new ones.

        The mapping has the keys of all sources, of which a source uses its own.
        """
        ...

    def use_topology(self, topology: Topology) -> None:
        """Watch the pools of this topology that have the source's kind, and no others."""
        ...

    async def first(self, timeout: float) -> None:
        """Return when every pool has had a first answer or failure, at the latest after `timeout` seconds."""
        ...

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Return pool → its current answer. An answer that has not changed has the same tuple of replicas."""
        ...

    def names(self) -> tuple[NameState, ...]:
        """Return the state of each name that is resolved, or service that is watched; empty where there is none."""
        ...

    async def stop(self) -> None:
        """Stop all requests. `answers` stays as it is."""
        ...


SourceFactory = Callable[[Callable[[], None], Guard], DiscoverySource]
"""Makes a source from its callback and the guard that runs its long-lived tasks."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The answers of all sources at one time. A pool without any answer is absent."""

    pools: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """Pool → its replicas, sorted by name."""
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Host of a fixed address → its addresses."""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key → the answer that the state saves, and that `seed` accepts after a restart."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Pool → the key of its answer, where it has one."""
    leaving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Pool → the replicas that its source has announced to end."""
    problems: tuple[Diagnostic, ...] = ()
    """Why new answers were refused."""

    def apply(self, topology: Topology) -> Topology:
        """Return the topology with the discovered replicas in its pools. It already contains replicas of files."""
        pools = tuple(
            replace(item, replicas=self.pools[item.name])
            if item.name in self.pools and item.discovery is not None and not item.discovery.compiled
            else item
            for item in topology.pools
        )
        return replace(topology, pools=pools)

    def without(self, leaving: Mapping[str, frozenset[str]]) -> Discovered:
        """Return the answers without these replicas of each pool."""
        if not any(leaving.values()):
            return self
        pools = {
            name: tuple(item for item in replicas if item.name not in leaving.get(name, ()))
            for name, replicas in self.pools.items()
        }
        return replace(self, pools=pools)

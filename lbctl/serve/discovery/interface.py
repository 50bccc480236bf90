"""The interface of a replica source: DNS, a file, or an API.

A source watches the pools with its kind of `discovery`, and returns all replicas of each pool. The source need not
check its answers: `service.DiscoveryService` keeps the last valid answer of a source that fails and rejects replicas
that no fleet file could list, and `guard` withholds answers that would remove too many replicas at once.
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
    """All replicas, sorted by name, with `drain` set for replicas that are being removed; None before the first
    answer."""
    answered: float | None = None
    """The time at which the source last got an answer for the pool."""
    error: str = ""
    """The reason why the last attempt failed; empty if it succeeded."""
    failed: float | None = None
    """The time of the last failed attempt."""
    key: str = ""
    """The key of `saved` in the state; empty if nothing is saved."""
    saved: tuple[str, ...] = ()
    """The answer in the format that the source's `seed` accepts."""
    leaving: frozenset[str] = frozenset()
    """Replicas whose termination the source has announced, even if they are still in the answer. The removal of these
    replicas needs no confirmation."""


@dataclass(frozen=True, slots=True)
class NameState:
    """The state of a watched DNS name, Kubernetes service or InferencePool, as the API reports it.

    Times are in seconds since the epoch; None means never.
    """

    name: str
    """The name. For a service or InferencePool, it includes the prefix `kubernetes` and the namespace."""
    resolvers: tuple[str, ...]
    """The resolvers in use; empty if the machine's resolvers are used, or none."""
    pools: tuple[str, ...]
    """The pools that get their replicas from this name."""
    addresses: tuple[str, ...] = ()
    """The usable addresses; without `answered`, they come from the saved state."""
    refused: tuple[str, ...] = ()
    """Addresses in the answer that are not valid for a replica."""
    left_out: int = 0
    """Number of addresses in excess of the largest `max_replicas` of the pools."""
    answered: float | None = None
    """The time of the last answer."""
    error: str = ""
    """The reason why the last query failed; empty if it succeeded."""
    failed: float | None = None
    """The time of the last failure."""


class DiscoverySource(Protocol):
    """A source of replicas.

    Its factory gets a callback, which the source calls in the event loop whenever `answers` changes. All methods are
    called in the event loop.
    """

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Use the answers saved before a restart until there are new ones.

        The mapping has the keys of all sources; each source uses only its own.
        """
        ...

    def use_topology(self, topology: Topology) -> None:
        """Watch exactly the pools of this topology that have the source's kind."""
        ...

    async def first(self, timeout: float) -> None:
        """Wait until every pool has had its first answer or failure, but at most `timeout` seconds."""
        ...

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Map each pool to its current answer. An unchanged answer has the same tuple of replicas."""
        ...

    def names(self) -> tuple[NameState, ...]:
        """Return the state of each resolved name or watched service; empty if there are none."""
        ...

    async def stop(self) -> None:
        """Stop all requests. `answers` stays unchanged."""
        ...


SourceFactory = Callable[[Callable[[], None], Guard], DiscoverySource]
"""Creates a source, given its callback and the guard that runs its long-lived tasks."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The answers of all sources at one point in time. A pool without an answer is absent."""

    pools: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """Maps each pool to its replicas, sorted by name."""
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps the host of each fixed address to its addresses."""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps each key to the answer that the state saves and that `seed` accepts after a restart."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Maps each pool to the key of its answer, if it has one."""
    leaving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose termination its source has announced."""
    problems: tuple[Diagnostic, ...] = ()
    """The reasons why new answers were withheld."""

    def apply(self, topology: Topology) -> Topology:
        """Return the topology with the discovered replicas in its pools.

        The topology already contains replicas from files.
        """
        pools = tuple(
            replace(item, replicas=self.pools[item.name])
            if item.name in self.pools and item.discovery is not None and not item.discovery.compiled
            else item
            for item in topology.pools
        )
        return replace(topology, pools=pools)

    def without(self, leaving: Mapping[str, frozenset[str]]) -> Discovered:
        """Return the answers with these replicas removed from their pools."""
        if not any(leaving.values()):
            return self
        pools = {
            name: tuple(item for item in replicas if item.name not in leaving.get(name, ()))
            for name, replicas in self.pools.items()
        }
        return replace(self, pools=pools)

"""The interface for replica sources: DNS, a file, or an API.

A source watches the pools that use its kind of `discovery` and returns all of each pool's replicas. The source need not
check its answers: `service.DiscoveryService` keeps the last valid answer when a source fails and rejects replicas that
could not be listed in a fleet file, and `guard` withholds answers that would remove too many replicas at once.
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
    """A source's answer for one pool. Times are in seconds since the epoch; None means never."""

    replicas: tuple[Replica, ...] | None = None
    """All replicas, sorted by name; replicas that are being removed have `drain` set. None before the first answer."""
    answered: float | None = None
    """Time at which the source last received an answer for the pool."""
    error: str = ""
    """Reason why the last attempt failed; empty if it succeeded."""
    failed: float | None = None
    """Time of the last failed attempt."""
    key: str = ""
    """Key of `saved` in the state; empty if nothing is saved."""
    saved: tuple[str, ...] = ()
    """The answer in the format accepted by the source's `seed`."""
    leaving: frozenset[str] = frozenset()
    """Replicas whose termination the source has announced, even if the answer still contains them. Removing these
    replicas does not require confirmation."""


@dataclass(frozen=True, slots=True)
class NameState:
    """The state of a watched DNS name, Kubernetes service or InferencePool, as reported by the API.

    Times are in seconds since the epoch; None means never.
    """

    name: str
    """The name. For a service or InferencePool, it includes the prefix `kubernetes` and the namespace."""
    resolvers: tuple[str, ...]
    """The resolvers in use; empty if the machine's resolvers are used or if none are needed."""
    pools: tuple[str, ...]
    """The pools that get replicas from this name."""
    addresses: tuple[str, ...] = ()
    """The usable addresses; if `answered` is None, they come from the saved state."""
    refused: tuple[str, ...] = ()
    """Addresses in the answer that are not valid as replica addresses."""
    left_out: int = 0
    """Number of addresses that exceed the largest `max_replicas` among the pools."""
    answered: float | None = None
    """Time of the last answer."""
    error: str = ""
    """Reason why the last query failed; empty if it succeeded."""
    failed: float | None = None
    """Time of the last failure."""


class DiscoverySource(Protocol):
    """A source of replicas.

    Its factory receives a callback, which the source calls in the event loop whenever `answers` changes. All methods
    are called in the event loop.
    """

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Use answers saved before a restart until new ones arrive.

        The mapping contains the keys of all sources; each source uses only its own keys.
        """
        ...

    def use_topology(self, topology: Topology) -> None:
        """Watch exactly the pools in this topology that use this source's kind of discovery."""
        ...

    async def first(self, timeout: float) -> None:
        """Wait until every pool has received its first answer or failure, for at most `timeout` seconds."""
        ...

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Map each pool to its current answer.

        While an answer is unchanged, its tuple of replicas stays the same object.
        """
        ...

    def names(self) -> tuple[NameState, ...]:
        """Return the state of each resolved name or watched service; empty if there are none."""
        ...

    async def stop(self) -> None:
        """Stop all queries. `answers` remains unchanged."""
        ...


SourceFactory = Callable[[Callable[[], None], Guard], DiscoverySource]
"""Creates a source from its callback and the guard that runs its long-lived tasks."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The answers from all sources at one point in time. Pools without an answer are absent."""

    pools: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """Maps each pool to its replicas, sorted by name."""
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps the host in each fixed address to its IP addresses."""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps each key to the answer that is saved in the state and passed to `seed` after a restart."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Maps each pool that has an answer to the answer's key."""
    leaving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Maps each pool to the replicas whose termination its source has announced."""
    problems: tuple[Diagnostic, ...] = ()
    """The reasons why new answers were withheld."""

    def apply(self, topology: Topology) -> Topology:
        """Return the topology with the discovered replicas added to its pools.

        The topology already contains the replicas listed in files.
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

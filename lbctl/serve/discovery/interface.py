"""The seam between the control plane and whoever knows the replicas of a pool: DNS, a file, an API.

A source follows the pools whose `discovery` has its kind, and answers for each with all its replicas. It need not judge
its answers: `service.Discovery` keeps the last good answer of a source that fails, refuses replicas that no fleet file
could name, and `guard` lets answers wait that take too many replicas away at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import Replica
from lbctl.ir.topology import Topology
from lbctl.serve.guard import Guard


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """What a source knows of one pool. Times are seconds since the epoch, None: never."""

    replicas: tuple[Replica, ...] | None = None
    """All replicas, by name; `drain` is set for one that is going away. Empty: there are none. None: not known yet."""
    answered: float | None = None
    """When the source last heard of the pool."""
    error: str = ""
    """Why the last attempt to hear of it failed; empty: it did not."""
    failed: float | None = None
    key: str = ""
    """What `saved` is known by, over a restart; empty: nothing of it is saved."""
    saved: tuple[str, ...] = ()
    """The answer in a form that the source's `seed` understands."""


class DiscoverySource(Protocol):
    """What `serve` needs of a source. It is made with a callback, which it calls in the event loop whenever `answers`
    has changed, and all its methods are called there."""

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Take what sources saved before a restart, keys of other sources too. It stands in for answers until there
        are new ones."""
        ...

    def follow(self, topology: Topology) -> None:
        """Follow the pools of this topology that have the source's kind, and no others."""
        ...

    async def first(self, timeout: float) -> None:
        """Return once every pool had a first answer or a first failure, at the latest after `timeout` seconds."""
        ...

    def answers(self) -> Mapping[str, PoolAnswer]:
        """What is known now: pool → its answer. An answer that has not changed has the same tuple of replicas."""
        ...

    async def stop(self) -> None:
        """Ask nobody any more. `answers` stays as it is."""
        ...


SourceFactory = Callable[[Callable[[], None], Guard], DiscoverySource]
"""Makes a source from its callback and the guard that runs its long-lived tasks."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What all sources know at one time. A pool that was never answered for is absent."""

    pools: Mapping[str, tuple[Replica, ...]] = field(default_factory=dict)
    """Pool → its replicas, by name."""
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Host of a fixed address → its addresses."""
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the state keeps, and `seed` takes back: key → answer."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Pool → the key of its answer, where it has one."""
    problems: tuple[Diagnostic, ...] = ()
    """Why new answers were refused."""

    def apply(self, topology: Topology) -> Topology:
        """The topology with the discovered replicas in its pools; those that the compiler reads are in it already."""
        pools = tuple(
            replace(item, replicas=self.pools[item.name])
            if item.name in self.pools and item.discovery is not None and not item.discovery.compiled
            else item
            for item in topology.pools
        )
        return replace(topology, pools=pools)

"""The source for pools with a file of replicas.

The compiler reads these files, for `validate`, `render` and `lint` as well as for `serve`, and interprets their labels.
The fleet watcher watches them, and each change compiles the fleet again: an error in such a file is reported like any
other error in the fleet, with file, line and column, and the last valid fleet stays in use. Therefore, the answer of
this source is the compiler's result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from lbctl.ir.pools import FileDiscovery
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.interface import NameState, PoolAnswer


class FileSource:
    """A DiscoverySource whose answers are not saved: the state saves the files instead."""

    def __init__(self, on_change: Callable[[], None], _: Guard, now: Callable[[], float] = time.time) -> None:
        self._on_change = on_change
        self._now = now
        self._answers: dict[str, PoolAnswer] = {}

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Do nothing: these answers are not saved."""

    def use_topology(self, topology: Topology) -> None:
        """Provide the replicas that the compiler has added to the pools of this topology."""
        now = self._now()
        pools = {pool.name: pool.replicas for pool in topology.pools if isinstance(pool.discovery, FileDiscovery)}
        self._answers = {name: PoolAnswer(replicas, answered=now) for name, replicas in pools.items()}
        self._on_change()

    async def first(self, timeout: float) -> None:
        """Return at once, because `use_topology` has set all answers."""

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Map each pool to its replicas, for the pools with `discovery.file`."""
        return self._answers

    def names(self) -> tuple[NameState, ...]:
        """Return nothing: no name is resolved."""
        return ()

    async def stop(self) -> None:
        """Do nothing: this source has no task."""

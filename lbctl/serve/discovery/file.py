"""The replica source for pools whose replicas are listed in a file.

The compiler reads these files and interprets their labels, both for `serve` and for `validate`, `render` and `lint`.
The fleet watcher watches the files, and each change recompiles the fleet. An error in such a file is reported like any
other error in the fleet, with file, line and column, and the last valid fleet stays in use. This source's answer is
therefore the compiler's result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from lbctl.ir.pools import FileDiscovery
from lbctl.ir.topology import Topology
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery.interface import NameState, PoolAnswer


class FileSource:
    """A DiscoverySource whose answers are not saved, because the saved state contains the files instead."""

    def __init__(self, on_change: Callable[[], None], _: Guard, now: Callable[[], float] = time.time) -> None:
        self._on_change = on_change
        self._now = now
        self._answers: dict[str, PoolAnswer] = {}

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Do nothing, because these answers are not saved."""

    def use_topology(self, topology: Topology) -> None:
        """Provide the replicas that the compiler has added to this topology's pools."""
        now = self._now()
        pools = {pool.name: pool.replicas for pool in topology.pools if isinstance(pool.discovery, FileDiscovery)}
        self._answers = {name: PoolAnswer(replicas, answered=now) for name, replicas in pools.items()}
        self._on_change()

    async def first(self, timeout: float) -> None:
        """Return immediately, because `use_topology` has set all answers."""

    def answers(self) -> Mapping[str, PoolAnswer]:
        """Map each pool with `discovery.file` to its replicas."""
        return self._answers

    def names(self) -> tuple[NameState, ...]:
        """Return an empty result, because no names are resolved."""
        return ()

    async def stop(self) -> None:
        """Do nothing, because this source has no task."""

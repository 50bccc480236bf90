"""Pools whose replicas a file names.

The compiler reads these files, for `validate`, `render` and `lint` as for `serve`, and knows what their labels mean.
The watch of the fleet's files follows them, and each change compiles the fleet anew: what is wrong in such a file is an
error of the fleet, with file, line and column, and the last good fleet stays. So the answer of this source is what the
compiler has read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from lbctl.ir.pools import FileDiscovery
from lbctl.ir.topology import Topology
from lbctl.serve.discovery.interface import PoolAnswer
from lbctl.serve.guard import Guard


class FileSource:
    """A DiscoverySource. The state keeps the files themselves, not these answers."""

    def __init__(self, changed: Callable[[], None], _: Guard, now: Callable[[], float] = time.time) -> None:
        self._changed = changed
        self._now = now
        self._answers: dict[str, PoolAnswer] = {}

    def seed(self, saved: Mapping[str, Sequence[str]]) -> None:
        """Nothing of these answers is saved."""

    def follow(self, topology: Topology) -> None:
        now = self._now()
        pools = {pool.name: pool.replicas for pool in topology.pools if isinstance(pool.discovery, FileDiscovery)}
        self._answers = {name: PoolAnswer(replicas, answered=now) for name, replicas in pools.items()}
        self._changed()

    async def first(self, timeout: float) -> None:
        """`follow` has read all that there is."""

    def answers(self) -> Mapping[str, PoolAnswer]:
        return self._answers

    async def stop(self) -> None:
        """Nothing runs."""

"""The traffic of the running fleet: the ledger, and the sources that report to it.

A new source of one kind of proxy follows the published fleet here and reports under the proxy's name, or under the node
id of an Envoy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.traffic.ledger import TrafficLedger


class Traffic:
    """Owns the ledger. `nodes` returns the ids of the Envoys that are known. `clock` is that of the ledger."""

    def __init__(self, nodes: Callable[[], Iterable[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = TrafficLedger()
        self.clock = clock
        self._nodes = nodes

    def follow(self, served: PublishedFleet) -> None:
        """Keep what the proxies of this fleet report, from now on."""
        proxies = (item.name for item in served.composed.whole.topology.proxies)
        self.ledger.keep([*proxies, *self._nodes()])

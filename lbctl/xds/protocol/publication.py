"""The published snapshot and the content of each node, shared by all streams and built once per kind of proxy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.xds.build.snapshot_cache import CachedSnapshot, UnsoundError
from lbctl.xds.protocol.load_reports import interval_of
from lbctl.xds.protocol.nodes import RefusedNode, assign
from lbctl.xds.protocol.stream import XdsNode
from lbctl.xds.resource import Resources

_REMEMBERED_FOR = 900.0
_MAX_REMEMBERED = 1000
_MAX_KINDS = 1000
"""Maximum number of cached kinds of proxies. Kinds of proxies differ by locality, which a client chooses freely."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node and the alternative names of its client certificate."""

    node: XdsNode
    """The node as it identifies itself."""
    sans: frozenset[str]
    """Alternative names of its client certificate."""


class Publication:
    """A published snapshot. `roster` stays the same object while the fleet's proxies do not change."""

    def __init__(self, snapshot: CachedSnapshot, previous: Publication | None = None) -> None:
        self.cached_snapshot = snapshot
        self.roster = snapshot.snapshot.topology
        if previous is not None and _roster_key(previous.roster) == _roster_key(self.roster):
            self.roster = previous.roster
        self._content: dict[Proxy, Resources | RefusedNode] = {}

    @cached_property
    def load_interval(self) -> float:
        """Seconds between load reports from a node."""
        return interval_of(self.cached_snapshot.snapshot.topology)

    def assign(self, identity: NodeIdentity) -> Proxy | RefusedNode:
        """Return the entry of `proxies` that matches the node, or the reason why there is none."""
        return assign(self.roster, identity.node, identity.sans)

    def content(self, proxy: Proxy) -> Resources | RefusedNode:
        """Return the proxy's resources, or RefusedNode if they are invalid. The proxy then keeps its current ones."""
        content = self._content.get(proxy)
        if content is None:
            if len(self._content) >= _MAX_KINDS:
                self._content.clear()
            content = self._content[proxy] = self._build(proxy)
        return content

    def _build(self, proxy: Proxy) -> Resources | RefusedNode:
        try:
            return self.cached_snapshot.resources(proxy)
        except UnsoundError as error:
            return RefusedNode(f"cannot be sent: {error.problems[0]}" if error.problems else "cannot be sent")


class EndedNodes:
    """Stores the resources of nodes whose streams have ended, for 15 minutes and at most the latest thousand."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str | None], tuple[float, Resources]] = {}

    def keep(self, node_id: str, only: str | None, resources: Resources) -> None:
        """Store a node's resources at the end of its stream. `only`: the resource type of a per-type service."""
        self._kept.pop((node_id, only), None)
        self._kept[node_id, only] = (self._clock(), resources)
        self.forget()

    def last(self, node_id: str, only: str | None) -> Resources | None:
        """Return a node's resources at the end of its last stream of this service, or None."""
        entry = self._kept.get((node_id, only))
        return entry[1] if entry else None

    def forget(self) -> None:
        """Drop expired entries, so that the memory of old snapshots is freed."""
        oldest = self._clock() - _REMEMBERED_FOR
        while self._kept and (len(self._kept) > _MAX_REMEMBERED or next(iter(self._kept.values()))[0] < oldest):
            del self._kept[next(iter(self._kept))]


def _roster_key(topology: Topology) -> tuple[tuple[Proxy, ...], str]:
    return topology.proxies, topology.control.unmatched_nodes

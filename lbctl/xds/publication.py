"""What is published, and who is given what of it: shared by all streams, asked once for each kind of proxy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.xds.cache import Edition, UnsoundError
from lbctl.xds.nodes import Refused, assign
from lbctl.xds.resource import Resources
from lbctl.xds.stream import Node

_REMEMBERED_FOR = 900.0
_REMEMBERED = 1000
_MOST_KINDS = 1000
"""Of proxies, told apart by where they say they are: a name that anybody may choose."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A node and the alternative names of its certificate."""

    node: Node
    sans: frozenset[str]


class Publication:
    """An edition. `roster`: the same object for as long as the fleet's proxies stay as they are."""

    def __init__(self, edition: Edition, previous: Publication | None = None) -> None:
        self.edition = edition
        self.roster = edition.snapshot.topology
        if previous is not None and _who(previous.roster) == _who(self.roster):
            self.roster = previous.roster
        self._content: dict[Proxy, Resources | Refused] = {}

    def assign(self, seat: Seat) -> Proxy | Refused:
        return assign(self.roster, seat.node, seat.sans)

    def content(self, proxy: Proxy) -> Resources | Refused:
        """Refused where what this proxy would get is unsound: it keeps what it has."""
        found = self._content.get(proxy)
        if found is None:
            if len(self._content) >= _MOST_KINDS:
                self._content.clear()
            found = self._content[proxy] = self._made(proxy)
        return found

    def _made(self, proxy: Proxy) -> Resources | Refused:
        try:
            return self.edition.resources(proxy)
        except UnsoundError as error:
            return Refused(f"cannot be sent: {error.problems[0]}" if error.problems else "cannot be sent")


class Remembered:
    """What nodes had when their streams ended: for a quarter of an hour, of the latest thousand."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str | None], tuple[float, Resources]] = {}

    def keep(self, node_id: str, only: str | None, resources: Resources) -> None:
        self._kept.pop((node_id, only), None)
        self._kept[node_id, only] = (self._clock(), resources)
        self.forget()

    def last(self, node_id: str, only: str | None) -> Resources | None:
        found = self._kept.get((node_id, only))
        return found[1] if found else None

    def forget(self) -> None:
        """Lets go of what is old; the content of old editions lives no longer than this."""
        oldest = self._clock() - _REMEMBERED_FOR
        while self._kept and (len(self._kept) > _REMEMBERED or next(iter(self._kept.values()))[0] < oldest):
            del self._kept[next(iter(self._kept))]


def _who(topology: Topology) -> tuple[tuple[Proxy, ...], str]:
    return topology.proxies, topology.control.unmatched_nodes

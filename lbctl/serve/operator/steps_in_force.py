"""The rollout steps that proxies have applied: a step's hold time runs only while one of its proxies has applied it.

A proxy has applied a step if it is connected and its acknowledged snapshot assigns the step's shares to the route. If
there are several members, each knows only about its own proxies and announces their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from lbctl.control import splits
from lbctl.control.rollouts import Rollouts, rollout_of, shares_at, step_id
from lbctl.control.splits import Shares
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, routes_reached
from lbctl.ir.topology import Topology

_REFUSED = "REFUSED"
_READER = "reader"


class ProxyRow(Protocol):
    """The status of an Envoy or a driven proxy, as returned by `NodeStatus.proxies` and `DriverSupervisor.rows`."""

    @property
    def proxy(self) -> str | None:
        """Name of the entry under `proxies` in the fleet; None for a node that does not match any entry."""

    @property
    def kind(self) -> str:
        """Kind of the proxy, or `reader` for a client that only reads."""

    @property
    def connected(self) -> bool:
        """Whether the proxy is currently connected."""

    @property
    def state(self) -> str:
        """The state, for example `SYNCED`."""

    @property
    def last_good(self) -> str:
        """The last version that it accepted completely; empty before the first one."""


Rows = Callable[[], Collection[ProxyRow]]
"""Returns the status of each proxy."""


class StepsInForce:
    """Compares rollout steps with the proxies' configuration."""

    def __init__(
        self, rows: Rows, snapshot_of: Callable[[str], Snapshot | None], announced: Callable[[], Collection[str]]
    ) -> None:
        """`snapshot_of` returns the snapshot with a given version; None if it is not available.

        `announced` returns the IDs of the steps that other members' proxies have applied.
        """
        self._rows = rows
        self._snapshot_of = snapshot_of
        self._announced = announced

    def routes(self, states: Rollouts, topology: Topology) -> frozenset[str]:
        """Return the routes whose current step has reached a proxy, including other members' proxies."""
        in_force = {*self.own(states, topology), *self._announced()}
        return frozenset(item.route for item in states if step_id(item) in in_force)

    def own(self, states: Rollouts, topology: Topology | None) -> tuple[str, ...]:
        """Return the IDs of the current steps that have reached one of this member's proxies.

        `topology`: the topology defined in the files.
        """
        routes = self._own_routes(states, topology) if topology is not None else frozenset()
        return tuple(step_id(item) for item in states if item.route in routes)

    def _own_routes(self, states: Rollouts, topology: Topology) -> frozenset[str]:
        steps = {
            state.route: shares_at(state.base, rollout.to, state.percent)
            for state in states
            if state.phase == "progressing" and (rollout := rollout_of(topology, state.route)) is not None
        }
        return frozenset(self._in_force(steps)) if steps else frozenset()

    def _in_force(self, steps: Mapping[str, Shares]) -> Iterator[str]:
        acknowledged = {(row.last_good, row.proxy) for row in self._rows() if _has_answered(row)}
        for version, name in acknowledged:
            snapshot = self._snapshot_of(version)
            if snapshot is not None:
                yield from _routes_at(steps, snapshot.topology, name)


def _has_answered(row: ProxyRow) -> bool:
    return row.connected and bool(row.last_good) and row.kind != _READER and row.state != _REFUSED


def _routes_at(steps: Mapping[str, Shares], topology: Topology, name: str | None) -> Iterator[str]:
    """Yield the named proxy's routes that have their step's shares; without a name, consider all routes."""
    proxy = next((item for item in topology.proxies if item.name == name), None)
    reached = routes_reached(topology, proxy or Proxy("", "", ()))
    for route in topology.routes:
        step = steps.get(route.name)
        if step is not None and route.name in reached and _as_parts(splits.shares_of(route)) == _as_parts(step):
            yield route.name


def _as_parts(shares: Shares) -> dict[str, float]:
    """Map each pool to its fraction of the split, because the same split can be expressed with different numbers."""
    total = sum(share for _, share in shares)
    return {pool: share / total for pool, share in shares} if total else {}

"""A running control plane's API: the functions behind its operations, its events and its dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from lbctl.api import schema
from lbctl.serve.api import operations, views
from lbctl.serve.api.dashboard.service import DashboardService
from lbctl.serve.api.forwarding import LeaderAddress
from lbctl.serve.api.handlers import OPERATIONS
from lbctl.serve.api.served_state import ServedState
from lbctl.serve.api.status_rows import topology
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.picker.feed import Feed


class ServedApi:
    """Provides the HTTP server with its operations, events and dashboard."""

    def __init__(self, state: ServedState) -> None:
        self.state = state
        self.events = state.events
        self.dashboard = DashboardService(_Dashboard(state), state.events)

    def operation(self, name: str) -> Callable[..., Any]:
        """Return the function that handles one of the route table's operations."""
        return partial(OPERATIONS[name], self.state)

    def end(self) -> None:
        """From now on, report that the process is shutting down, and end the event streams."""
        self.state.process.ending = True
        self.events.close()
        self.dashboard.end()

    def metrics(self) -> bytes:
        """Return the metrics page."""
        return self.state.metrics.page()

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""
        return self.state.picker.feed

    def age(self) -> float | None:
        """Return the maximum age of the returned data, in seconds; None if this process makes the decisions."""
        return views.age(self.state)

    def forwards_to(self) -> LeaderAddress | None:
        """Return the address to which writes are forwarded; None if this process performs writes itself."""
        return views.forwards_to(self.state)

    def member_requests(self) -> MemberRequests | None:
        """Return the verifier for other members' requests; None if this process is the only member."""
        return views.member_requests(self.state)


class _Dashboard:
    """Provides the dashboard's documents."""

    def __init__(self, state: ServedState) -> None:
        self._state = state

    @property
    def history_seconds(self) -> float:
        """The period covered by the charts, in seconds."""
        return topology(self._state.live).control.dashboard_history / 1000

    def live(self) -> Iterator[tuple[schema.LivePool, Iterable[schema.LiveReplica]] | None]:
        """Yield each pool with its replicas, and None at points where other tasks may run."""
        return self._state.replicas.live()

    def status(self) -> schema.Status:
        """Return `/api/v1/status`."""
        return views.status(self._state)

    def proxies(self) -> schema.Proxies:
        """Return `/api/v1/proxies`."""
        return views.proxies(self._state)

    def rollouts(self) -> schema.Rollouts:
        """Return `/api/v1/rollouts`."""
        return operations.rollouts(self._state)

    def splits(self) -> Sequence[schema.LiveSplit]:
        """Return the splits of routes that forward to several pools."""
        return operations.splits(self._state)

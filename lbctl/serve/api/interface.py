"""The interface between the HTTP server of the API and the control plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web

from lbctl.serve.api.dashboard.service import DashboardService
from lbctl.serve.api.events import EventLog
from lbctl.serve.api.forwarding import LeaderAddress
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.picker.feed import Feed


class Serving(Protocol):
    """The documents of the API, and the operations behind its writes."""

    @property
    def events(self) -> EventLog:
        """The streamed events."""

    @property
    def dashboard(self) -> DashboardService:
        """The dashboard's stream and history."""

    def operation(self, name: str) -> Callable[..., Any]:
        """Return the function for an operation, already bound to the state."""

    def metrics(self) -> bytes:
        """Return the metrics page in the Prometheus text format."""

    def age(self) -> float | None:
        """Return the maximum age of the data that this process returns, in seconds; None if this process decides."""

    def forwards_to(self) -> LeaderAddress | None:
        """Return the destination of forwarded writes; None if this process carries out writes itself."""

    def member_requests(self) -> MemberRequests | None:
        """Return the verifier of other members' requests; None if this process is the only member."""

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""


SERVING: web.AppKey[Serving] = web.AppKey("serving")
"""The application key under which the HTTP server stores the control plane."""

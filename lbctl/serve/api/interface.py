"""The interface between the API's HTTP server and the control plane."""

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
    """The API's documents, and the operations behind its writes."""

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
        """Return the maximum age of the returned data, in seconds; None if this process makes the decisions."""

    def forwards_to(self) -> LeaderAddress | None:
        """Return the address to which writes are forwarded; None if this process performs writes itself."""

    def member_requests(self) -> MemberRequests | None:
        """Return the verifier for other members' requests; None if this process is the only member."""

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""


SERVING: web.AppKey[Serving] = web.AppKey("serving")
"""The application key under which the HTTP server stores the control plane."""

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
    """The documents that the API answers, and the operations behind its writes."""

    @property
    def events(self) -> EventLog:
        """The events that are streamed."""

    @property
    def dashboard(self) -> DashboardService:
        """The stream and the history of the dashboard."""

    def operation(self, name: str) -> Callable[..., Any]:
        """Return the function of an operation, without the argument for the state."""

    def metrics(self) -> bytes:
        """Return the page of metrics in the text format of Prometheus."""

    def age(self) -> float | None:
        """Return how old what is read here may be, in seconds; None where this process decides."""

    def forwards_to(self) -> LeaderAddress | None:
        """Return where writes are forwarded to; None where this process carries them out."""

    def member_requests(self) -> MemberRequests | None:
        """Return what verifies the requests of other members; None where this process is the only one."""

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""


SERVING: web.AppKey[Serving] = web.AppKey("serving")
"""The key of the control plane in the application of the server."""

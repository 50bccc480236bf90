"""What the HTTP API asks of the control plane."""

from __future__ import annotations

from typing import Protocol

from lbctl.api import schema
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

    def ready(self) -> str:
        """Return why no proxy is answered yet; empty when proxies are answered."""

    def status(self) -> schema.Status:
        """Return `/api/v1/status`."""

    def proxies(self) -> schema.Proxies:
        """Return `/api/v1/proxies`."""

    def pools(self) -> schema.Pools:
        """Return `/api/v1/pools`."""

    def fleet(self) -> schema.FleetSettings:
        """Return `/api/v1/fleet`."""

    def signals(self) -> schema.Signals:
        """Return `/api/v1/signals`."""

    def decisions(self) -> schema.Decisions:
        """Return `/api/v1/decisions`."""

    async def explain_pick(self, request: schema.PickQuestion, actor: str) -> schema.PickExplanation:
        """Return which replica a request would be given. Raises BadRequestError and NotSavedError."""

    def picks(self) -> schema.Picks:
        """Return `GET /api/v1/picks`."""

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""

    def overrides(self) -> schema.Overrides:
        """Return `GET /api/v1/overrides`."""

    def rollouts(self) -> schema.Rollouts:
        """Return `GET /api/v1/rollouts`."""

    def history(self) -> schema.History:
        """Return `GET /api/v1/history`."""

    def members(self) -> schema.Members:
        """Return `GET /api/v1/members`."""

    def age(self) -> float | None:
        """Return how old what is read here may be, in seconds; None where this process decides."""

    def forwards_to(self) -> LeaderAddress | None:
        """Return where writes are forwarded to; None where this process carries them out."""

    def member_requests(self) -> MemberRequests | None:
        """Return what verifies the requests of other members; None where this process is the only one."""

    async def audit(self) -> schema.Audit:
        """Return `GET /api/v1/audit`. Raises StoreError."""

    def metrics(self) -> bytes:
        """Return the page of metrics in the text format of Prometheus."""

    async def reload(self, request: schema.ReloadRequest, actor: str) -> schema.ReloadResult:
        """Read the files now."""

    async def rollback(self, request: schema.RollbackRequest, actor: str) -> schema.RollbackResult:
        """Serve an earlier fleet until the files change. Raises BadRequestError and NotSavedError."""

    async def put_override(self, request: schema.OverrideRequest, actor: str) -> schema.OverrideResult:
        """Hold an override from now on. Raises BadRequestError and NotSavedError."""

    async def act_on_rollout(self, request: schema.RolloutRequest, actor: str) -> schema.RolloutResult:
        """Start, move or end a rollout. Raises BadRequestError and NotSavedError."""

    async def remove_override(self, request: schema.OverrideRemoval, actor: str) -> schema.RemovalResult:
        """End an override. Raises BadRequestError and NotSavedError."""

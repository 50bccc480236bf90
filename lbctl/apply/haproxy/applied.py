"""The result of an attempt to apply a view to an HAProxy."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.apply.haproxy.diff import CommandPlan
from lbctl.apply.haproxy.running import Place, Running
from lbctl.targets.target import Complaint

SOON = 1.0
"""Seconds before lbctl checks leaving servers again or retries an unresponsive proxy."""


@dataclass(frozen=True, slots=True)
class RejectedCommand:
    """A command that HAProxy rejected, and its response."""

    command: str
    message: str
    """HAProxy's response."""


@dataclass(frozen=True, slots=True)
class HaproxyResult:
    """The result of one attempt.

    `done`: HAProxy has applied the whole view, but removed servers may still have requests (`leaving`). `reload`: the
    reason why the remaining changes require a reload. `reloaded`: the file was reloaded. `restarted`: a new worker
    responded, so its entire state was read again. `retry_after`: seconds until the next attempt is useful, or None if
    none is needed. `due`, `wrong`: as in `AgentStatus`. `failure`: the reason why the attempt ended early.
    `complaints`: the errors that HAProxy's checker found in the rendered file. `pid`: the worker's process ID.
    """

    done: bool
    sent: tuple[str, ...] = ()
    refused: tuple[RejectedCommand, ...] = ()
    reload: tuple[str, ...] = ()
    reloaded: bool = False
    restarted: bool = False
    leaving: tuple[Place, ...] = ()
    retry_after: float | None = None
    failure: str = ""
    complaints: tuple[Complaint, ...] = ()
    due: str = ""
    wrong: str = ""
    pid: int | None = None


class Convergence:
    """The intermediate state of one attempt. `rejections` maps each rejected command to HAProxy's response."""

    def __init__(self) -> None:
        self.now: Running | None = None
        self.plan: CommandPlan | None = None
        self.sent: list[str] = []
        self.rejections: dict[str, str] = {}
        self.busy = False
        self.restarted = False
        self.failure = ""

    def fail(self, reason: str) -> None:
        """Record why the attempt cannot continue."""
        self.now, self.failure = None, reason

    def has_slots(self, place: Place) -> bool:
        """Return whether the server's backend has slots."""
        return self.now is not None and any(backend == place[0] for backend, _ in self.now.slots)

    def applied(self, wanted_digest: str = "", retry_after: float | None = None) -> HaproxyResult:
        """Return the result. If the loaded file's digest differs from `wanted_digest`, a reload is required."""
        plan, now = self.plan, self.now
        refused_commands = [
            RejectedCommand(each, answer)
            for each, answer in self.rejections.items()
            if not each.startswith("del server ")
        ]
        sent, refused = tuple(self.sent), tuple(refused_commands)
        if plan is None or now is None:
            return HaproxyResult(
                False, sent, refused, restarted=self.restarted, retry_after=retry_after, failure=self.failure
            )
        reasons = [*plan.reload, *(f"HAProxy rejected {item.command!r}: {item.message}" for item in refused)]
        if wanted_digest and now.digest != wanted_digest:
            reasons.insert(0, "the configuration loaded by HAProxy differs in more than its servers")
        remaining = [each for each in plan.commands if each not in self.rejections]
        return HaproxyResult(
            done=not remaining and not reasons,
            sent=sent,
            refused=refused,
            reload=tuple(reasons),
            restarted=self.restarted,
            leaving=plan.leaving,
            retry_after=SOON if plan.leaving or self.busy or remaining else None,
            pid=now.pid,
        )

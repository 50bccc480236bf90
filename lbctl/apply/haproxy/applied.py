"""The result of an attempt to bring a HAProxy to a view."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.apply.haproxy.diff import Plan
from lbctl.apply.haproxy.running import Place, Running
from lbctl.targets.target import Complaint

SOON = 1.0
"""Seconds until leaving servers are checked again, or a proxy that did not answer is retried."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A command that HAProxy rejected, and its answer."""

    command: str
    words: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of one attempt.

    `done`: HAProxy has all that the view wants; removed servers may still have requests (`leaving`). `reload`: why the
    rest needs the file. `reloaded`: the file was reloaded. `restarted`: another worker answered than last time, so its
    whole state was read anew. `again`: seconds until the next attempt is useful, None if nothing is left to do. `due`:
    replicas that HAProxy will ask for shortly; `wrong`: replicas that it should ask for and does not. `failure`: why
    the attempt ended early. `complaints`: of HAProxy's checker, about the rendered file. `pid`: the worker.
    """

    done: bool
    sent: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    reload: tuple[str, ...] = ()
    reloaded: bool = False
    restarted: bool = False
    leaving: tuple[Place, ...] = ()
    again: float | None = None
    failure: str = ""
    complaints: tuple[Complaint, ...] = ()
    due: str = ""
    wrong: str = ""
    pid: int | None = None


class Progress:
    """The intermediate state of one convergence. `words`: command → HAProxy's answer that rejects it."""

    def __init__(self) -> None:
        self.now: Running | None = None
        self.plan: Plan | None = None
        self.sent: list[str] = []
        self.words: dict[str, str] = {}
        self.busy = False
        self.restarted = False
        self.failure = ""

    def fail(self, reason: str) -> None:
        """Record why the convergence cannot continue."""
        self.now, self.failure = None, reason

    def applied(self, wanted_shape: str = "", again: float | None = None) -> Applied:
        """Return the result; a reload is needed where the loaded file's digest differs from `wanted_shape`."""
        plan, now = self.plan, self.now
        rejections = [
            Refused(each, answer) for each, answer in self.words.items() if not each.startswith("del server ")
        ]
        sent, refused = tuple(self.sent), tuple(rejections)
        if plan is None or now is None:
            return Applied(False, sent, refused, restarted=self.restarted, again=again, failure=self.failure)
        reasons = [*plan.reload, *(f"HAProxy refused {item.command!r}: {item.words}" for item in refused)]
        if wanted_shape and now.shape != wanted_shape:
            reasons.insert(0, "what HAProxy has loaded differs in more than its servers")
        left = [each for each in plan.commands if each not in self.words]
        return Applied(
            done=not left and not reasons,
            sent=sent,
            refused=refused,
            reload=tuple(reasons),
            restarted=self.restarted,
            leaving=plan.leaving,
            again=SOON if plan.leaving or self.busy or left else None,
            pid=now.pid,
        )

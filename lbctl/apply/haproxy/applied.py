"""What came of bringing a HAProxy to a view, said in full to whoever asked."""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.apply.haproxy.diff import Plan
from lbctl.apply.haproxy.running import Place, Running
from lbctl.targets.target import Complaint

SOON = 1.0
"""Seconds until what leaves is looked at again, or a proxy that did not answer is asked again."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A command and HAProxy's words against it."""

    command: str
    words: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of it.

    `done`: HAProxy has all that the view wants; what leaves may still have requests (`leaving`). `reload`: why the file
    is needed for the rest. `reloaded`: it was done. `restarted`: another worker than last time answered, so everything
    was looked at anew. `again`: seconds after which it is worth asking again, None where nothing is left to do.
    `due`: what HAProxy has yet to ask for, and will in a moment; `wrong`: what it should ask for and does not.
    `failure`: why it went no further. `complaints`: of HAProxy's checker, about the rendered file. `pid`: the worker.
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
    """What one convergence has seen so far. `words`: command → HAProxy's answer against it."""

    def __init__(self) -> None:
        self.now: Running | None = None
        self.plan: Plan | None = None
        self.sent: list[str] = []
        self.words: dict[str, str] = {}
        self.busy = False
        self.restarted = False
        self.failure = ""

    def fail(self, words: str) -> None:
        self.now, self.failure = None, words

    def applied(self, wanted_shape: str = "", again: float | None = None) -> Applied:
        plan, now = self.plan, self.now
        against = [Refused(each, words) for each, words in self.words.items() if not each.startswith("del server ")]
        sent, refused = tuple(self.sent), tuple(against)
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

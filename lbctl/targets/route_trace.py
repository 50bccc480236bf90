"""Which rule takes a request, and why: what one kind of proxy will do, said in advance.

It asks `targets.<kind>.reading` how that proxy reads the request, and then the listener's own table; a test holds it
against the real proxies. It draws no lot: where chance decides it says with which probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import Criterion, Request, criteria, deciding_criterion, refuses
from lbctl.ir.routes import Forward, Pin, Share
from lbctl.targets import reader
from lbctl.targets.reading import Message, Refusal, Version

_COOKIE = re.compile(r"[;,] *")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that one could expect to take the request. `failed`: its conditions that do not hold; `beaten_by`: of one
    that matches and does not win, by what the winner is the more specific."""

    rule: Rule
    failed: tuple[Criterion, ...] = ()
    beaten_by: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """`winner`: None where nothing matches (404), or where `refusal` says what the proxy answers before any rule.
    `request` stands beside a `refusal` where rules were asked before.
    `matched`: every rule that matches, the winner first; `missed`: the others, nearest first."""

    kind: str
    request: Request | None
    refusal: Refusal | None
    winner: Rule | None
    matched: tuple[Candidate, ...]
    missed: tuple[Candidate, ...]


def explain(listener: Listener, message: Message, kind: str, version: Version) -> Explained:
    read = reader(kind)(message, listener, version)
    if isinstance(read, Refusal):
        return Explained(kind, None, read, None, (), ())
    judged = [(rule, tuple(item for item in criteria(rule, read) if not item.holds)) for rule in listener.rules]
    refusing = next((rule for rule, failed in judged if not failed or refuses(rule, read)), None)
    if refusing is not None and read.unclear and refuses(refusing, read):
        return Explained(kind, read, Refusal(*read.unclear), None, (), ())
    matching = [rule for rule, failed in judged if not failed]
    winner = matching[0] if matching else None
    matched = (
        Candidate(rule, (), deciding_criterion(winner, rule) if winner and rule is not winner else "")
        for rule in matching
    )
    missed = sorted((item for item in judged if item[1]), key=lambda item: len(item[1]))
    return Explained(kind, read, None, winner, tuple(matched), tuple(Candidate(*item) for item in missed))


# ── The pool ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Choice:
    """How the pool is found. `by`: pin and kept are certain, and `index` is the pin's place; kept_by_hash: one of
    `shares`, always the same for this client; draw: by chance. `shares`: pool → probability, 0…1."""

    by: Literal["pin", "kept", "kept_by_hash", "draw", "only"]
    shares: dict[str, float]
    index: int | None = None


def choice(action: Forward, request: Request) -> Choice:
    """Pins first, then the variant that the client has, then the draw."""
    for index, pin in enumerate(action.pins):
        if _holds(pin, request):
            return Choice("pin", {pin.pool: 1.0}, index)
    live = [share for share in action.shares if share.weight > 0]
    if len(live) == 1:
        return Choice("only", {live[0].pool: 1.0})
    sticky = action.sticky
    if sticky is not None and sticky.kind == "cookie":
        kept = next((value for value in cookies(request, sticky.name) if value in {item.pool for item in live}), None)
        if kept is not None:
            return Choice("kept", {kept: 1.0})
    if sticky is not None and sticky.kind == "header" and sticky.name in request.headers:
        return Choice("kept_by_hash", _probabilities(live))
    return Choice("draw", _probabilities(live))


def cookies(request: Request, name: str) -> Iterator[str]:
    """Every value of the cookie, in the order in which they stand."""
    for item in _COOKIE.split(";".join(request.headers.get("cookie", ()))):
        known, equals, value = item.strip().partition("=")
        if equals and known == name:
            yield value


def _holds(pin: Pin, request: Request) -> bool:
    if pin.kind == "header":
        return pin.value in request.headers.get(pin.name.lower(), ())
    return next(cookies(request, pin.name), None) == pin.value


def _probabilities(live: list[Share]) -> dict[str, float]:
    total = sum(share.weight for share in live)
    return {share.pool: share.weight / total for share in live}

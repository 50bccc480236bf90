"""The rule that matches a request and the reason, as a prediction for one kind of proxy.

`targets.<kind>.reading` predicts how the proxy reads the request; the listener's rules determine everything else. A
test compares the prediction with the real proxies. Nothing is drawn at random: if chance decides, the result contains
the probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import Criterion, Request, criteria, deciding_criterion, refusal
from lbctl.ir.routes import Forward, Pin
from lbctl.ir.shares import of_pools
from lbctl.targets import reader
from lbctl.targets.reading import Message, Refusal, Version

_COOKIE = re.compile(r"[;,] *")


@dataclass(frozen=True, slots=True)
class RuleCandidate:
    """A rule that one might expect to match the request."""

    rule: Rule
    failed: tuple[Criterion, ...] = ()
    """Conditions of the rule that the request does not meet."""
    beaten_by: str = ""
    """Criterion by which the winning rule is more specific, if this rule matches too."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How one kind of proxy handles a request."""

    kind: str
    request: Request | None
    """Request as the rules see it; None if it is rejected before rules are matched."""
    refusal: Refusal | None
    """Proxy's own response in place of a rule."""
    winner: Rule | None
    """Rule that handles the request; None if no rule matches (404) or the request is rejected."""
    matched: tuple[RuleCandidate, ...]
    """All matching rules, the winner first."""
    missed: tuple[RuleCandidate, ...]
    """Rules that do not match, starting with the fewest failed conditions."""


def explain(listener: Listener, message: Message, kind: str, version: Version) -> Explained:
    """Return how a proxy of `kind` in `version` handles a message on `listener`."""
    request = reader(kind)(message, listener, version)
    if isinstance(request, Refusal):
        return Explained(kind, None, request, None, (), ())
    evaluated = [(rule, tuple(item for item in criteria(rule, request) if not item.holds)) for rule in listener.rules]
    deciding = next((rule for rule, failed in evaluated if not failed or refusal(rule, request)), None)
    reason = refusal(deciding, request) if deciding is not None else None
    if reason is not None:
        return Explained(kind, request, Refusal(*reason), None, (), ())
    matching = [rule for rule, failed in evaluated if not failed]
    winner = matching[0] if matching else None
    matched = (
        RuleCandidate(rule, (), deciding_criterion(winner, rule) if winner and rule is not winner else "")
        for rule in matching
    )
    missed = sorted((item for item in evaluated if item[1]), key=lambda item: len(item[1]))
    return Explained(kind, request, None, winner, tuple(matched), tuple(RuleCandidate(*item) for item in missed))


# ── The pool ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """How a request's pool is chosen from the pools of its route."""

    by: Literal["pin", "kept", "kept_by_hash", "draw", "only"]
    """`pin` and `kept` are certain; `kept_by_hash` is one of `shares`, always the same one for this client.

    `draw` is a random choice from `shares`; `only` means that the route has no other pool.
    """
    shares: dict[str, float]
    """Maps each pool to its probability, 0…1."""
    index: int | None = None
    """Position of the pin that decides."""


def choice(action: Forward, request: Request) -> PoolChoice:
    """Return how the pool is chosen: by the first matching pin, or else by the client's variant, or else by a draw."""
    for index, pin in enumerate(action.pins):
        if _pin_matches(pin, request):
            return PoolChoice("pin", {pin.pool: 1.0}, index)
    shares = of_pools(action)
    if len(shares) == 1:
        return PoolChoice("only", shares)
    sticky = action.sticky
    if sticky is not None and sticky.kind == "cookie":
        variant = next((value for value in cookies(request, sticky.name) if value in shares), None)
        if variant is not None:
            return PoolChoice("kept", {variant: 1.0})
    if sticky is not None and sticky.kind == "header" and sticky.name in request.headers:
        return PoolChoice("kept_by_hash", shares)
    return PoolChoice("draw", shares)


def cookies(request: Request, name: str) -> Iterator[str]:
    """Yield every value of the cookie `name`, in order."""
    for item in _COOKIE.split(";".join(request.headers.get("cookie", ()))):
        cookie, equals, value = item.strip().partition("=")
        if equals and cookie == name:
            yield value


def _pin_matches(pin: Pin, request: Request) -> bool:
    if pin.kind == "header":
        return pin.value in request.headers.get(pin.name.lower(), ())
    return next(cookies(request, pin.name), None) == pin.value

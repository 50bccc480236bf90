"""`POST /api/v1/picks/explain`: which replica a request would be given now, and what speaks for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PickQuestion:
    """A request as a client would send it. Nothing of it is kept."""

    pool: str
    """The pool."""
    session: str | None
    """The value of the pool's first session key; None: the request has none."""
    body: str | None
    """The beginning of the body; None: the request has none."""
    body_bytes: int | None = None
    """The length of the whole body in bytes; None: it is given whole."""
    region: str | None = None
    """The region of the asking proxy; None: it has none."""
    zone: str | None = None
    """The zone of the asking proxy; None: it has none."""
    tenant: str | None = None
    """The tenant that sends the request; None: none that the route knows."""


@dataclass(frozen=True, slots=True)
class PickRequest:
    """What the picker reads of the request."""

    session: str | None
    """Its session; None: it has none."""
    body_bytes: int
    """The length of its body."""
    prompt_tokens: float
    """The estimated tokens of its prompt."""
    model: str | None
    """The model that it names; None: none."""
    adapter: str | None
    """The adapter that it names; None: none."""
    blocks: int
    """Blocks of the prompt's beginning by which it can be recognised."""


@dataclass(frozen=True, slots=True)
class PickCandidate:
    """One replica in a decision."""

    name: str
    """The name of the replica."""
    address: str
    """Where it listens."""
    eligible: bool
    """Whether the request may go there."""
    reason: str
    """Why it may not; empty if it may."""
    rate: float | None
    """What it can do relative to the others, slow start included; None if it is not eligible."""
    ramp: float
    """The factor of slow start in `rate`, from 0 to 1."""
    work: float | None
    """The work in flight there, in tokens; None if it is not eligible."""
    cached: float | None
    """The request's tokens that its cache may hold; None if none are known."""
    counted: bool
    """Whether its cache counts: its load is within the bound."""
    wait: float | None
    """The expected wait without the cache: the work divided by the rate, and the request's own tokens by the rate
    without slow start; None if it is not eligible."""


@dataclass(frozen=True, slots=True)
class PickExplanation:
    """The decision that the picker would make now."""

    pool: str
    """The pool."""
    sentence: str
    """What would be chosen and why."""
    reason: str
    """The reason, as one word."""
    choices: tuple[str, ...]
    """The replicas of which one would be chosen at random; usually one."""
    request: PickRequest
    """What was read of the request."""
    candidates: tuple[PickCandidate, ...]
    """Every replica of the pool, the best first."""

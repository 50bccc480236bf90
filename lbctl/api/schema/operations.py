"""Overrides and reload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lbctl.api.schema.status import Diagnostic, Override, Snapshot
from lbctl.api.schema.values import OverrideKind, ReloadOutcome


@dataclass(frozen=True, slots=True)
class Overrides:
    """The answer of `GET /api/v1/overrides`."""

    overrides: tuple[Override, ...]
    """What operators hold."""


@dataclass(frozen=True, slots=True)
class OverrideRequest:
    """The body of `POST /api/v1/overrides`."""

    kind: OverrideKind
    """What to hold."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; None for `freeze` and `split`."""
    value: float | None = None
    """The weight, above 0 on the scale of capacities; for `weight` alone."""
    route: str | None = None
    """The route; for `split` alone."""
    shares: Mapping[str, int] | None = None
    """Pool → its share, a whole number from 0, for each pool of the route's split; for `split` alone."""
    reason: str | None = None
    """Why; at most 200 characters are kept."""
    ttl: float | None = None
    """Seconds after which it ends by itself; None: somebody has to remove it."""


@dataclass(frozen=True, slots=True)
class OverrideRemoval:
    """The body of `DELETE /api/v1/overrides`."""

    kind: OverrideKind
    """What is held."""
    pool: str = ""
    """The pool; empty for `split`."""
    replica: str | None = None
    """The replica; None for `freeze` and `split`."""
    route: str | None = None
    """The route; for `split` alone."""


@dataclass(frozen=True, slots=True)
class OverrideResult:
    """The answer of `POST /api/v1/overrides`."""

    override: Override
    """The override as it is held from now on."""
    snapshot: Snapshot | None
    """What is published with it; None before the first fleet."""
    warnings: tuple[str, ...] = ()
    """What else is to be known: pools without an available replica, and files that are not served."""


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The answer of `DELETE /api/v1/overrides`."""

    removed: bool
    """Whether there was such an override."""
    snapshot: Snapshot | None
    """What is published without it; None before the first fleet."""
    warnings: tuple[str, ...] = ()
    """What else is to be known: pools without an available replica, and files that are not served."""


@dataclass(frozen=True, slots=True)
class ReloadRequest:
    """The body of `POST /api/v1/reload`."""

    allow_shrink: bool = False
    """Whether to serve the files even where they lose more replicas or keys than `control.max_shrink` allows."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The answer of `POST /api/v1/reload`."""

    result: ReloadOutcome
    """`published`, `unchanged`, `invalid` (errors), `refused` (too large a loss), `unsound` (a proxy would reject it),
    or `rolled_back` (the files have not changed since a rollback, which stays in force)."""
    refused: str | None
    """Why the files are not served; None where they are."""
    offered_again: int
    """How many resources that Envoys had rejected are sent to them once more."""
    snapshot: Snapshot | None
    """What is published now; None before the first fleet."""
    diagnostics: tuple[Diagnostic, ...]
    """Everything that the read reported."""

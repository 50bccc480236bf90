"""Types of values that several documents share."""

from __future__ import annotations

from typing import Annotated, Literal

Timestamp = Annotated[str, "date-time"]
"""ISO 8601 in UTC with milliseconds, as 2026-01-31T12:00:00.000Z."""
OverrideKind = Literal["drain", "weight", "freeze", "split"]
ReloadOutcome = Literal["published", "unchanged", "invalid", "refused", "unsound", "rolled_back"]

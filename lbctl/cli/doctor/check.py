"""The result of one check of `lbctl doctor`: its state, what was detected, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "failed", "skipped"]
_DEGRADED = 3
_UNREACHABLE = 4


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """One result.

    `what` is the checked object, by its name in the fleet if it has one. `message` is what was detected. `todo` is the
    advice, empty if there is nothing to do. `absent` means that something required does not exist or does not answer.
    """

    what: str
    state: State
    """How it ended."""
    message: str
    todo: str = ""
    absent: bool = False


def exit_code(checks: Iterable[DoctorResult]) -> int:
    """Return 0 if nothing failed, 4 if something required cannot be reached, else 3."""
    failed = [item for item in checks if item.state == "failed"]
    if any(item.absent for item in failed):
        return _UNREACHABLE
    return _DEGRADED if failed else 0

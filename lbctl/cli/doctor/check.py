"""The result of one `lbctl doctor` check, with its state, its finding and the recommended action."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "failed", "skipped"]
_DEGRADED = 3
_UNREACHABLE = 4


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """The result of one check.

    `what` is the checked object, with its name in the fleet if it has one. `message` is the finding. `todo` is the
    recommended action; it may be empty. `absent` is whether something required is missing or not responding.
    """

    what: str
    state: State
    message: str
    todo: str = ""
    absent: bool = False


def exit_code(checks: Iterable[DoctorResult]) -> int:
    """Return 0 if no check failed, 4 if something required is missing or not responding, and 3 otherwise."""
    failed = [item for item in checks if item.state == "failed"]
    if any(item.absent for item in failed):
        return _UNREACHABLE
    return _DEGRADED if failed else 0

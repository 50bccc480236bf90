"""One thing that was looked at: how it stands, what was found, what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "failed", "skipped"]
_DEGRADED = 3
_UNREACHABLE = 4


@dataclass(frozen=True, slots=True)
class Check:
    """`what`: the thing, as the fleet names it where it does. `todo`: empty where there is nothing to do. `absent`: it
    failed because something needed is not there or does not answer."""

    what: str
    state: State
    found: str
    todo: str = ""
    absent: bool = False


def exit_code(checks: Iterable[Check]) -> int:
    """0 when nothing failed, 4 when something needed cannot be reached, else 3."""
    failed = [item for item in checks if item.state == "failed"]
    if any(item.absent for item in failed):
        return _UNREACHABLE
    return _DEGRADED if failed else 0

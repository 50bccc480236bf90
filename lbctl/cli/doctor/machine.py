"""Checks this machine's open-file limit and clock."""

from __future__ import annotations

import ctypes
import resource
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.cli.doctor.check import DoctorResult
from lbctl.ir.listeners import Listener

_UNSTATED = 8192
"""Number of client connections assumed if a listener has no limit."""
_SPARE = 1536
"""Number of additional open files for logs, listeners and health checks."""
_UNSYNCHRONISED = 0x40
"""STA_UNSYNC of adjtimex(2)."""
_TIMEX = "@Illlli"
"""The first fields of `struct timex`: modes, offset, freq, maxerror, esterror … status."""
_TIMEX_SIZE = 512
_NOTICEABLE = 1.0
_HARMFUL = 60.0
"""Clock skew, in seconds, at which time-limited tokens are rejected."""


@dataclass(frozen=True, slots=True)
class Skew:
    """A lower bound on the clock skew between a server and this machine."""

    server: str
    ahead: float
    """Number of seconds by which the server's clock is ahead, or a negative number if it is behind."""


def files(listeners: Sequence[Listener]) -> DoctorResult:
    """Compare this shell's open-file limit with the fleet's needs, which are two connections per client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    finding = f"{_limit(soft)}, can be raised to {_limit(hard)}"
    if not listeners:
        return DoctorResult("open files", "ok", finding)
    limits = [item.max_connections for item in listeners]
    need = 2 * (sum(item or 0 for item in limits) if all(limits) else _UNSTATED) + _SPARE
    if _at_least(soft, need):
        return DoctorResult("open files", "ok", f"{finding}; the fleet's connections need {need}")
    finding = f"{finding}; the fleet's connections need {need}"
    todo = f"run `ulimit -n {need}`, or set LimitNOFILE={need} for a service"
    return DoctorResult("open files", "warn" if _at_least(hard, need) else "failed", finding, todo)


def _at_least(limit: int, need: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= need


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def clock(skews: Sequence[Skew]) -> DoctorResult:
    """Check the clock. `skews` contains the clock skews of servers that report their time."""
    worst = max(skews, key=lambda item: abs(item.ahead), default=None)
    synchronised = _synchronised()
    texts = {
        True: "synchronised",
        False: "not synchronised",
        None: "synchronisation unknown",
    }
    if worst is not None and abs(worst.ahead) >= _NOTICEABLE:
        side = "ahead of" if worst.ahead > 0 else "behind"
        finding = f"{texts[synchronised]}; {worst.server} is {abs(worst.ahead):.0f} s {side} this clock"
        return DoctorResult(
            "clock", "failed" if abs(worst.ahead) >= _HARMFUL else "warn", finding, "run NTP on both machines"
        )
    agreed = f"; agrees with {len(skews)} other{'s' if len(skews) > 1 else ''}" if skews else ""
    if synchronised is False:
        return DoctorResult("clock", "warn", f"{texts[False]}{agreed}", "timedatectl set-ntp true, or run chrony")
    return DoctorResult("clock", "ok" if synchronised or skews else "skipped", f"{texts[synchronised]}{agreed}")


def _synchronised() -> bool | None:
    """Return whether the kernel considers the clock synchronised, or None if unknown."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = ctypes.create_string_buffer(_TIMEX_SIZE)
    if adjtimex(state) < 0:
        return None
    return not struct.unpack_from(_TIMEX, state.raw)[-1] & _UNSYNCHRONISED

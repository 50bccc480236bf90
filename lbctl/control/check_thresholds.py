"""Applies thresholds to active check results to decide whether to eject a replica, without any I/O.

As in Envoy, the first result is decisive, because waiting for three failures at startup would mean sending requests to
a replica that is known to be down. Before the first result, a replica that existed before lbctl started counts as good,
and a replica that joins later counts as ejected. Times are passed as arguments, in seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbctl.ir.pools import ActiveCheck


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    problem: str = ""
    """The problem, or an empty string if there is none."""

    @property
    def good(self) -> bool:
        """Whether the replica has passed the check."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class CheckState:
    """The state of a replica according to its active checks."""

    out: bool
    """Whether the replica is ejected."""
    since: float
    """The time at which the replica was last ejected or readmitted."""
    reason: str = ""
    """The reason why the replica is ejected or, if it is not ejected, its most recent failure."""
    contrary: int = 0
    """Number of consecutive results that contradict `out`."""
    at: float | None = None
    """The time of the newest result, or None before the first result."""
    passed: bool = False
    """Whether the replica has ever passed a check."""


def initial_state(now: float, *, trusted: bool) -> CheckState:
    """Return the state before the first result, which is in if the replica is `trusted` and ejected otherwise."""
    return CheckState(out=False, since=now) if trusted else CheckState(out=True, since=now, reason="not checked yet")


def next_state(before: CheckState, check: ActiveCheck, result: CheckResult, now: float) -> CheckState:
    """Return the state after one more result."""
    is_first = before.at is None
    contrary = before.contrary + 1 if result.good == before.out else 0
    needed = 1 if is_first else check.healthy_threshold if before.out else check.unhealthy_threshold
    reason = result.problem or (before.reason if before.out else "")
    passed = before.passed or result.good
    if contrary < needed:
        return replace(before, contrary=contrary, at=now, reason=reason, passed=passed)
    return CheckState(out=not before.out, since=now, reason=result.problem, at=now, passed=passed)

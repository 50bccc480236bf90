"""Applies thresholds to the results of active checks to decide whether to eject a replica, without any I/O.

As in Envoy, the first result is decisive: waiting for three failures at startup would send requests to a replica that
is known to be down. Before the first result, a replica that existed before lbctl started counts as good, and a replica
that joins later counts as ejected. Times are passed as arguments, in seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbctl.ir.pools import ActiveCheck


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    problem: str = ""
    """The problem; empty if there is none."""

    @property
    def good(self) -> bool:
        """Whether the replica has passed the check."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class CheckState:
    """The state of one replica according to its active checks."""

    out: bool
    """Whether the replica is ejected."""
    since: float
    """The time at which the replica was last ejected or readmitted."""
    reason: str = ""
    """The reason why the replica is ejected; if it is not ejected, the newest failure."""
    contrary: int = 0
    """Number of consecutive results that contradict `out`."""
    at: float | None = None
    """The time of the newest result; None before the first."""
    passed: bool = False
    """Whether the replica has ever passed a check."""


def initial_state(now: float, *, trusted: bool) -> CheckState:
    """Return the state before the first result: in if the replica is `trusted`, otherwise ejected."""
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

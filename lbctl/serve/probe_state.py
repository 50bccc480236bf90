"""Whether an active check holds a replica in or out: thresholds over the results of its probes, without any I/O.

As Envoy does it, the first result decides alone: who waits for three failures at the start sends requests to a replica
that is known to be down. Until then a replica that was there before lbctl is taken for good, and one that joins later
is out. Times are seconds since the epoch, and are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbctl.ir.pools import ActiveCheck


@dataclass(frozen=True, slots=True)
class Result:
    """Of one probe. `words`: what was wrong; empty where nothing was."""

    words: str = ""

    @property
    def good(self) -> bool:
        return not self.words


@dataclass(frozen=True, slots=True)
class Probed:
    """A replica. `since`: when it last came in or went out; `reason`: why it is out, or the newest failure while it is
    not yet. `run`: how many results in a row speak against what it is. `at`: of the newest result, None before it."""

    out: bool
    since: float
    reason: str = ""
    run: int = 0
    at: float | None = None


def begun(now: float, *, trusted: bool) -> Probed:
    return Probed(out=False, since=now) if trusted else Probed(out=True, since=now, reason="not checked yet")


def probed(was: Probed, check: ActiveCheck, result: Result, now: float) -> Probed:
    """After one more result."""
    first = was.at is None
    against = result.good == was.out
    run = was.run + 1 if against else 0
    needed = 1 if first else check.healthy_threshold if was.out else check.unhealthy_threshold
    reason = result.words or (was.reason if was.out else "")
    if run < needed:
        return replace(was, run=run, at=now, reason=reason)
    return Probed(out=not was.out, since=now, reason=result.words, at=now)

"""How many fit replicas a backend needs: to serve as the nearest tier, or not to shed its load.

The number follows from that of the replicas. Where replicas come and go through the Runtime API, it is a variable of
the process, which that API can change; otherwise it is in the rule.
"""

from __future__ import annotations

import hashlib

from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

PREFIX = "set-var proc.least_"


def replicas(part: TierBackend) -> int | None:
    """Return how many replicas of this backend must be fit; None where no rule asks."""
    if part.min_fit:
        return part.min_fit
    shedding = part.pool.load_shedding
    if shedding is None or part.name != part.whole:
        return None
    return int(-(-part.size * shedding.min_healthy // 100))


def variable(name: str) -> str:
    """Return the variable that holds the number of the backend `name`, which is without its `pool_`."""
    return f"proc.least_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def declared(part: TierBackend) -> Token | None:
    """Return the line of the global section that sets the variable, or None without one."""
    number = replicas(part)
    if number is None or not part.view.proxy.sets_variables:
        return None
    return line(f"set-var {variable(part.name)} int({number})", source=("pools", part.pool.name))


def compared(fit: str, name: str, number: int, view: View) -> tuple[str, str]:
    """Return `fit`, a sample, and what it is compared with: together they compare it with the number of `name`.

    `name` is a backend without its `pool_`; `number` is its number in the rendered file.
    """
    if view.proxy.sets_variables:
        return f"{fit},sub({variable(quote.name(name).text)})", "0"
    return fit, str(int(number))

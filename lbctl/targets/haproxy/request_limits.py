"""How many concurrent requests a pool accepts, as HAProxy counts them.

Without a number in the fleet the limit grows with the replicas. Where replicas come and go through the Runtime API, it
is a variable of the process, which that API can change; otherwise it is in the rule.
"""

from __future__ import annotations

import hashlib

from lbctl.ir.pools import Pool
from lbctl.targets.haproxy import sections, servers
from lbctl.targets.haproxy.locality_tiers import TierBackend
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

PREFIX = "set-var proc.most_"
_UNLIMITED = 2**31 - 1


def requests(pool: Pool) -> int | None:
    """Return the limit, or None if the limits of the replicas together are within it.

    In that case requests wait for the replicas instead.
    """
    breaker = pool.circuit_breaker
    limit = min(breaker.max_requests, breaker.max_connections) if pool.protocol == "http1" else breaker.max_requests
    per_replica = servers.limit(pool)
    return limit if per_replica is None or not pool.replicas or per_replica * len(pool.replicas) > limit else None


def value(part: TierBackend) -> int | None:
    """Return the number that the rule compares with, or None without a rule.

    Where replicas come and go through the Runtime API there is always a rule, since with more of them the limits of the
    replicas together may exceed the pool's.
    """
    limit = requests(part.pool)
    return _UNLIMITED if limit is None and part.view.proxy.sets_variables else limit


def backend(part: TierBackend) -> str:
    """Return the name of the backend section."""
    return sections.pool(part.name, part.view.proxy)


def variable(part: TierBackend) -> str:
    """Return the variable that holds the limit; its name takes no `-`, and a backend's name may have one."""
    return f"proc.most_{hashlib.sha256(backend(part).encode()).hexdigest()[:12]}"


def declared(part: TierBackend) -> Token | None:
    """Return the line of the global section that sets the variable, or None without one."""
    limit = value(part)
    if limit is None or not part.view.proxy.sets_variables:
        return None
    return line(f"set-var {variable(part)} int({limit})", source=("pools", part.pool.name, "circuit_breaker"))


def above(part: TierBackend) -> str:
    """Return the condition under which a further request is too many.

    Where requests can wait, txn.queued is the number of those that do.
    """
    in_flight = f"be_conn({backend(part)})" + ("" if servers.limit(part.pool) is None else ",sub(txn.queued)")
    if part.view.proxy.sets_variables:
        return f"{{ {in_flight},sub({variable(part)}) gt 0 }}"
    return f"{{ {in_flight} gt {value(part)} }}"

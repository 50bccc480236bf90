"""How many concurrent requests a pool accepts, as HAProxy counts them.

Without a number in the fleet the limits grow with the replicas. Where replicas come and go through the Runtime API,
they are variables of the process, which that API can change; otherwise they are in the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

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


def waiting(part: TierBackend) -> int | None:
    """Return how many requests may wait, or None where none can: only replicas with limits have a queue."""
    return None if servers.limit(part.pool) is None else max(1, part.pool.circuit_breaker.max_pending_requests)


def backend(part: TierBackend) -> str:
    """Return the name of the backend section."""
    return sections.pool(part.name, part.view.proxy)


def variables(part: TierBackend) -> Iterator[tuple[str, int]]:
    """Yield the variables of the process that hold the limits, with their values; none where they are in the rules."""
    if not part.view.proxy.sets_variables:
        return
    for name, limit in ((_in_flight_variable(part), value(part)), (_waiting_variable(part), waiting(part))):
        if limit is not None:
            yield name, limit


def declared(part: TierBackend) -> Iterator[Token]:
    """Yield the lines of the global section that set the variables."""
    for name, limit in variables(part):
        yield line(f"set-var {name} int({limit})", source=("pools", part.pool.name, "circuit_breaker"))


def above(part: TierBackend) -> str:
    """Return the condition under which a further request is too many.

    Where requests can wait, txn.queued is the number of those that do.
    """
    in_flight = f"be_conn({backend(part)})" + ("" if servers.limit(part.pool) is None else ",sub(txn.queued)")
    if part.view.proxy.sets_variables:
        return f"{{ {in_flight},sub({_in_flight_variable(part)}) gt 0 }}"
    return f"{{ {in_flight} gt {value(part)} }}"


def queue_full(part: TierBackend) -> str:
    """Return the condition under which no further request may wait."""
    queued = f"queue({backend(part)})"
    if part.view.proxy.sets_variables:
        return f"{{ {queued},sub({_waiting_variable(part)}) ge 0 }}"
    return f"{{ {queued} ge {waiting(part)} }}"


def _in_flight_variable(part: TierBackend) -> str:
    return _variable(backend(part))


def _waiting_variable(part: TierBackend) -> str:
    return _variable(f"{backend(part)} waiting")


def _variable(limit: str) -> str:
    """Return the variable of a limit; its name takes no `-`, and a backend's name may have one."""
    return f"proc.most_{hashlib.sha256(limit.encode()).hexdigest()[:12]}"

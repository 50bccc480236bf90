"""How many requests a pool takes at once, as HAProxy counts them.

Without a number in the fleet it grows with the replicas, so where replicas come and go through the Runtime API it is a
variable of the process, which that can change; else it stands in the rule.
"""

from __future__ import annotations

import hashlib

from lbctl.ir.pools import Pool
from lbctl.targets.haproxy import quote, servers
from lbctl.targets.haproxy.locality_tiers import Part
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

PREFIX = "set-var proc.most_"


def requests(pool: Pool) -> int | None:
    """None where the limits of the replicas together are within the pool's: requests wait for them."""
    breaker = pool.circuit_breaker
    active = min(breaker.max_requests, breaker.max_connections) if pool.protocol == "http1" else breaker.max_requests
    each = servers.limit(pool)
    return active if each is None or not pool.replicas or each * len(pool.replicas) > active else None


def backend(part: Part) -> str:
    return f"pool_{quote.name(part.name).text}"


def variable(part: Part) -> str:
    """A variable's name takes no `-`, and a backend's may have one."""
    return f"proc.most_{hashlib.sha256(backend(part).encode()).hexdigest()[:12]}"


def declared(part: Part) -> Token | None:
    """The line of the global section."""
    most = requests(part.pool)
    if most is None or not part.view.proxy.runtime_api:
        return None
    return line(f"set-var {variable(part)} int({most})", source=("pools", part.pool.name, "circuit_breaker"))


def above(part: Part) -> str:
    """The condition under which one more is too many, txn.queued being those that wait."""
    own, most = backend(part), requests(part.pool)
    if part.view.proxy.runtime_api:
        return f"{{ be_conn({own}),sub(txn.queued),sub({variable(part)}) gt 0 }}"
    return f"{{ be_conn({own}),sub(txn.queued) gt {most} }}"

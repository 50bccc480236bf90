"""Which of discovery's new answers count: those that would take too many replicas away at once wait to be confirmed.

A resolver that is half up answers with half of a pool. The pools concerned keep what they had; the others go on.
"""

from __future__ import annotations

from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.topology import Topology
from lbctl.serve.discover import Discovered, Question
from lbctl.serve.shrink import shrinks


def judged(
    topology: Topology, accepted: Discovered, found: Discovered, most: float
) -> tuple[Discovered, tuple[Diagnostic, ...]]:
    """`found` with what was `accepted` before in the place of what is refused, and why it is. `most`: percent of a
    pool's or the fleet's replicas that may go."""
    lost = shrinks(accepted.apply(topology), found.apply(topology), most)
    if not lost:
        return found, ()
    concerned = {str(item.path[1]) for item in lost if len(item.path) > 1}
    if any(len(item.path) == 1 for item in lost):
        concerned |= {name for name in accepted.pools if len(found.pools.get(name, ())) < len(accepted.pools[name])}
    held = [pool for pool in topology.pools if pool.name in concerned and pool.name in accepted.pools]
    pools = {**found.pools, **{pool.name: accepted.pools[pool.name] for pool in held}}
    keys = {_key(pool) for pool in held}
    answers = {**found.answers, **{key: kept for key, kept in accepted.answers.items() if key in keys}}
    return replace(found, pools=pools, answers=answers), tuple(lost)


def unresolved(topology: Topology, found: Discovered) -> list[str]:
    """The pools whose name has never been answered."""
    return [
        pool.name
        for pool in topology.pools
        if isinstance(pool.discovery, DnsDiscovery) and not found.pools.get(pool.name)
    ]


def _key(pool: Pool) -> str:
    """Under which the pool's answer is known."""
    told = pool.discovery
    return str(Question(told.name, told.resolvers)) if isinstance(told, DnsDiscovery) else ""

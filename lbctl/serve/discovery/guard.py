"""Which of discovery's new answers count: those that would take too many replicas away at once wait to be confirmed.

A resolver that is half up answers with half of a pool. The pools concerned keep what they had; the others go on.
"""

from __future__ import annotations

from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.shrink import shrinks
from lbctl.ir.topology import Topology
from lbctl.serve.discovery.interface import Discovered


def judged(
    topology: Topology, accepted: Discovered, found: Discovered, most: float
) -> tuple[Discovered, tuple[Diagnostic, ...]]:
    """`found` with what was `accepted` before in the place of what is refused, and why it is. `most`: percent of a
    pool's or the fleet's replicas that may go.

    Losses in pools that the compiler reads wait with the files of the fleet, before they come here."""
    answered = accepted.pools.keys() & found.pools.keys()
    lost = shrinks(accepted.apply(topology), found.apply(topology), most, answered)
    if not lost:
        return found, found.problems
    concerned = {str(item.path[1]) for item in lost if len(item.path) > 1}
    if any(len(item.path) == 1 for item in lost):
        concerned |= {name for name in accepted.pools if len(found.pools.get(name, ())) < len(accepted.pools[name])}
    held = {
        pool.name
        for pool in topology.pools
        if pool.name in concerned & accepted.pools.keys() and pool.discovery is not None and not pool.discovery.compiled
    }
    pools = {**found.pools, **{name: accepted.pools[name] for name in held}}
    keys = {accepted.keys[name] for name in held if name in accepted.keys}
    answers = {**found.answers, **{key: accepted.answers[key] for key in keys if key in accepted.answers}}
    kept = {name: key for name, key in accepted.keys.items() if name in held}
    return replace(found, pools=pools, answers=answers, keys={**found.keys, **kept}), (*lost, *found.problems)


def unresolved(topology: Topology, found: Discovered) -> list[str]:
    """The pools that their source has never answered for."""
    return [pool.name for pool in topology.pools if pool.discovery is not None and pool.name not in found.pools]

"""Decides which new discovery answers are accepted: removing too many replicas at once requires confirmation.

For example, a partly available resolver may return only half of a pool's replicas. The affected pools keep their
earlier answers, and all other pools get the new ones.
"""

from __future__ import annotations

from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic
from lbctl.control.shrink import shrinks
from lbctl.ir.topology import Topology
from lbctl.serve.discovery.interface import Discovered


def accepted_answers(
    topology: Topology, accepted: Discovered, discovered: Discovered, max_shrink: float
) -> tuple[Discovered, tuple[Diagnostic, ...]]:
    """Return `discovered` with each withheld answer replaced by the one in `accepted`, and the reasons.

    `max_shrink`: the maximum percentage of replicas that may be removed from a pool or from the fleet. Losses in pools
    with a file of replicas are not checked here, because they are confirmed together with the files. Replicas whose
    termination was announced by a source are ignored.
    """
    answered = accepted.pools.keys() & discovered.pools.keys()
    before, after = (item.without(discovered.leaving).apply(topology) for item in (accepted, discovered))
    losses = shrinks(before, after, max_shrink, answered)
    if not losses:
        return discovered, discovered.problems
    affected = {str(item.path[1]) for item in losses if len(item.path) > 1}
    if any(len(item.path) == 1 for item in losses):
        affected |= {name for name in accepted.pools if len(discovered.pools.get(name, ())) < len(accepted.pools[name])}
    kept_pools = {
        pool.name
        for pool in topology.pools
        if pool.name in affected & accepted.pools.keys() and pool.discovery is not None and not pool.discovery.compiled
    }
    pools = {**discovered.pools, **{name: accepted.pools[name] for name in kept_pools}}
    keys = {accepted.keys[name] for name in kept_pools if name in accepted.keys}
    answers = {**discovered.answers, **{key: accepted.answers[key] for key in keys if key in accepted.answers}}
    kept_keys = {name: key for name, key in accepted.keys.items() if name in kept_pools}
    return replace(discovered, pools=pools, answers=answers, keys={**discovered.keys, **kept_keys}), (
        *losses,
        *discovered.problems,
    )


def unresolved(topology: Topology, discovered: Discovered) -> list[str]:
    """Return the pools that have never received an answer."""
    return [pool.name for pool in topology.pools if pool.discovery is not None and pool.name not in discovered.pools]

"""Determines whether proxies shed a pool's requests, because kinds of proxies interpret replica states differently."""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.ir.pools import Pool
from lbctl.ir.routes import Forward, Route
from lbctl.targets import target

_DRAINED = frozenset({"draining", "drained"})


def shedding(pool: Pool, routes: Iterable[Route], kinds: Iterable[str], states: Iterable[str]) -> str | None:
    """Return the reason why these kinds of proxies shed requests to the pool (`load_shedding`), or None if they do not.

    Without an active check, proxies only know about replicas that they have ejected themselves.
    """
    if pool.load_shedding is None:
        return None
    actions = [item.action for item in routes if isinstance(item.action, Forward) and pool.name in item.action.pools]
    have_fallback = [action.fallback not in (None, pool.name) for action in actions]
    present = [state for state in states if state != "removed"]
    lost = _DRAINED | {"ejected", "asleep"} | ({"starting", "down"} if pool.active is not None else frozenset())
    for kind in kinds:
        counted = target(kind).sheds(pool, have_fallback)
        if counted == "none":
            continue
        members = [state for state in present if counted == "all" or state not in _DRAINED]
        available = sum(state not in lost for state in members)
        if 100 * available < pool.load_shedding.min_healthy * len(members):
            limit = f"load_shedding.min_healthy is {pool.load_shedding.min_healthy:g}%"
            return f"{available} of {len(members)} replicas {'is' if available == 1 else 'are'} available, and {limit}"
    return None

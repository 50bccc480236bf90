"""Who serves first: replicas ranked by priority, own zone, own region and the rest, as backends.

HAProxy knows servers and their backups, no more. So each rank but the last has a backend with the replicas of that rank
and of all before it; the pool's own backend has all. A request goes to the first whose own rank is fit: with `locality`
while `spill_below` of it are up, else while one is. A step, not a ramp: below it the next rank shares by weight.

A replica is checked once, in the first backend that has it; the others track it there. Each backend counts requests
for itself, so a replica can get up to twice its limit for as long as requests from before a step last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets import locality
from lbctl.targets.haproxy import agents, residency

_MARK = ".NEAR."


@dataclass(frozen=True, slots=True)
class Part:
    """A backend of a pool: `pool` and `view` have no more than its replicas. `name` and `whole`: backends without their
    `pool_`, this one and the one with all `size` replicas. `least`: how many of its last rank must be fit, 0 for the
    whole. `homes`: replica → the backend that checks it, where that is another. `agents`: of `agents.places`."""

    name: str
    pool: Pool
    view: View
    whole: str
    size: int
    least: int = 0
    homes: Mapping[str, str] = field(default_factory=dict)
    agents: Mapping[tuple[str, str], Address] = field(default_factory=dict)


def all_parts(view: View) -> Iterator[Part]:
    """Every backend with servers, a replica's home before those that track it there."""
    known = agents.places(view)
    for each in view.pools.values():
        yield from (replace(part, agents=known) for part in parts(each, view, each.name))
    for name, each, within in residency.copies(view):
        yield from (replace(part, agents=known) for part in parts(each, within, name))


def parts(pool: Pool, view: View, name: str) -> tuple[Part, ...]:
    """The nearest first, the whole last. `name`: of the whole, without its `pool_`."""
    ranks = _ranks(pool, view.proxy)
    found: list[Part] = []
    homes: dict[str, str] = {}
    for place, rank in enumerate(ranks[:-1]):
        new = [item.name for item in pool.replicas if locality.rank(item, pool, view.proxy) == rank]
        near, within = residency.only(pool, view, {*homes, *new})
        own = f"{name}{_MARK}{place}"
        found.append(Part(own, near, within, name, len(pool.replicas), _least(pool, len(new)), dict(homes)))
        homes |= dict.fromkeys(new, own)
    return (*found, Part(name, pool, view, name, len(pool.replicas), homes=homes))


def has_backups(pool: Pool) -> bool:
    """Two priorities and nothing else: HAProxy's own `backup`."""
    return pool.locality is None and len({item.priority for item in pool.replicas}) == 2


def backups(pool: Pool) -> frozenset[str]:
    """The names of the replicas that stand by so."""
    if not has_backups(pool):
        return frozenset()
    first = min(item.priority for item in pool.replicas)
    return frozenset(item.name for item in pool.replicas if item.priority > first)


def pool_name(backend: str) -> str:
    return residency.pool_name(backend.partition(_MARK)[0])


def _least(pool: Pool, size: int) -> int:
    return max(1, int(-(-size * pool.locality.spill_below // 100))) if pool.locality else 1


def _ranks(pool: Pool, proxy: Proxy) -> list[tuple[int, int]]:
    return [] if has_backups(pool) else sorted({locality.rank(item, pool, proxy) for item in pool.replicas})

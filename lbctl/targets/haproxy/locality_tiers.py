"""A pool's tiers as backends: replicas ranked by priority, own zone, own region and the rest.

HAProxy distinguishes only between servers and backup servers. For this reason, each rank except the last has a backend
that contains the replicas of this rank and all earlier ranks; the pool's own backend contains all replicas. A request
goes to the first backend whose own rank is healthy: with `locality`, while `spill_below` percent of the rank are up;
otherwise, while at least one replica is up. The transition is a step, not a ramp: below that percentage, the next rank
joins in proportion to its weight.

With `fail_open`, an additional backend contains all replicas without checks and serves while no replica of the pool is
up.

A replica is checked once, in the first backend that contains it; its servers in the other backends track that server.
Each backend counts its requests separately, so a replica can receive up to twice its limit while earlier requests are
still in flight after a step.
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

_MARK, _OPEN = ".NEAR.", ".OPEN"


@dataclass(frozen=True, slots=True)
class TierBackend:
    """One backend of a pool. `pool` and `view` contain only its replicas."""

    name: str
    """Backend name without its `pool_` prefix."""
    pool: Pool
    view: View
    whole: str
    """Name of the backend with all replicas, without its `pool_` prefix."""
    size: int
    """Number of replicas in the whole pool."""
    min_fit: int = 0
    """Number of replicas in the backend's last rank that must be up for it to serve; 0 for the whole pool."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """Maps a replica to the backend that checks it, if that is another backend."""
    agents: Mapping[tuple[str, str], Address] = field(default_factory=dict)
    """Addresses from `agents.places`."""


def all_parts(view: View) -> Iterator[TierBackend]:
    """Yield all backends of pools. Backends that check a replica come before backends that track it."""
    agent_addresses = agents.places(view)
    for pool in view.pools.values():
        yield from (replace(part, agents=agent_addresses) for part in _with_open(pool, view, pool.name))
    for name, pool, restricted_view in residency.copies(view):
        yield from (replace(part, agents=agent_addresses) for part in _with_open(pool, restricted_view, name))


def parts(pool: Pool, view: View, name: str) -> tuple[TierBackend, ...]:
    """Return the backends of a pool, from the nearest to the whole pool.

    `name` is the whole pool's backend, without its `pool_` prefix.
    """
    ranks = _ranks(pool, view.proxy)
    tiers: list[TierBackend] = []
    homes: dict[str, str] = {}
    for position, rank in enumerate(ranks[:-1]):
        new = [item.name for item in pool.replicas if locality.rank(item, pool, view.proxy) == rank]
        restricted_pool, restricted_view = residency.with_replicas(pool, view, {*homes, *new})
        tier_name = f"{name}{_MARK}{position}"
        tiers.append(
            TierBackend(
                tier_name,
                restricted_pool,
                restricted_view,
                name,
                len(pool.replicas),
                _min_fit(pool, len(new)),
                dict(homes),
            )
        )
        homes |= dict.fromkeys(new, tier_name)
    return (*tiers, TierBackend(name, pool, view, name, len(pool.replicas), homes=homes))


def open_name(whole: str) -> str:
    """Return the name of the backend without checks, without its `pool_` prefix."""
    return f"{whole}{_OPEN}"


def _with_open(pool: Pool, view: View, name: str) -> tuple[TierBackend, ...]:
    tiers = parts(pool, view, name)
    if not pool.fail_open:
        return tiers
    unchecked = replace(pool, active=None, agent=None, passive=None, slow_start=None)
    open_view = replace(view, pools={**view.pools, pool.name: unchecked})
    return (*tiers, TierBackend(open_name(name), unchecked, open_view, name, len(pool.replicas)))


def has_backups(pool: Pool) -> bool:
    """Return whether HAProxy's own `backup` is sufficient: two priorities, and no `locality`."""
    return pool.locality is None and len({item.priority for item in pool.replicas}) == 2


def backups(pool: Pool) -> frozenset[str]:
    """Return the names of the replicas that are rendered as `backup`."""
    if not has_backups(pool):
        return frozenset()
    first = min(item.priority for item in pool.replicas)
    return frozenset(item.name for item in pool.replicas if item.priority > first)


def pool_name(backend: str) -> str:
    """Return the pool of a backend. Both the backend and the pool are named without the `pool_` prefix."""
    return residency.pool_name(backend.partition(_MARK)[0].removesuffix(_OPEN))


def _min_fit(pool: Pool, size: int) -> int:
    return max(1, int(-(-size * pool.locality.spill_below // 100))) if pool.locality else 1


def _ranks(pool: Pool, proxy: Proxy) -> list[tuple[int, int]]:
    return [] if has_backups(pool) else sorted({locality.rank(item, pool, proxy) for item in pool.replicas})

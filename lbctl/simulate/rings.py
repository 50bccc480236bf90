"""What a hash is looked up in: the points of a ring (HAProxy, nginx), or Envoy's Maglev table, written as a ring."""

from __future__ import annotations

import zlib

from lbctl.ir.pools import Pool

KEYS = 1 << 32
"""Keys are below this."""
_POINTS = 128
"""Points of a replica with the mean capacity."""
_TABLE = 65_537
"""Places of Envoy's table."""


def points(pool: Pool) -> list[tuple[int, int]]:
    """Return (point, number of the replica) in order, as many for each as its capacity says."""
    total = sum(replica.capacity for replica in pool.replicas)
    result = []
    for index, replica in enumerate(pool.replicas):
        share = max(1, round(_POINTS * len(pool.replicas) * replica.capacity / total))
        result += [(zlib.crc32(f"{replica.name}_{number}".encode()), index) for number in range(share)]
    return sorted(result)


def maglev(pool: Pool) -> list[tuple[int, int]]:
    """Return the places of Envoy's table as evenly spaced points."""
    return [((place + 1) * KEYS // _TABLE - 1, replica) for place, replica in enumerate(_maglev_table(pool))]


def _maglev_table(pool: Pool) -> list[int]:
    """Replicas take places in turns, each in an order of its own and as often as its capacity says."""
    largest = max(replica.capacity for replica in pool.replicas)
    seeds = [zlib.crc32(replica.name.encode()) for replica in pool.replicas]
    place = [seed % _TABLE for seed in seeds]
    skip = [zlib.crc32(replica.name[::-1].encode(), 1) % (_TABLE - 1) + 1 for replica in pool.replicas]
    due = [0.0] * len(seeds)
    table, free = [-1] * _TABLE, _TABLE
    while free:
        for index, replica in enumerate(pool.replicas):
            due[index] += replica.capacity / largest
            if due[index] < 1.0 or not free:
                continue
            due[index] -= 1.0
            while table[place[index]] >= 0:
                place[index] = (place[index] + skip[index]) % _TABLE
            table[place[index]] = index
            free -= 1
    return table

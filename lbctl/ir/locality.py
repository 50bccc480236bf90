"""Calculates the distance between a replica and a proxy, using one rule for every kind of proxy and for the picker."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Place(NamedTuple):
    """Location of a proxy or replica."""

    region: str | None = None
    """Region, or None if the fleet does not specify one."""
    zone: str | None = None
    """Zone within the region, or None if the fleet does not specify one."""


NOWHERE = Place()
"""Location for which the fleet specifies neither a region nor a zone."""


def distance(prefer: Literal["zone", "region"], proxy: Place, replica: Place) -> int:
    """Return 0 for a replica in the proxy's zone, 1 for a replica in its region, and 2 otherwise.

    Zones with the same name in different regions are distinct. If the proxy or the replica has no region, only the zone
    is compared.
    """
    same_region = proxy.region is not None and replica.region == proxy.region
    unknown = proxy.region is None or replica.region is None
    if prefer == "zone" and proxy.zone is not None and replica.zone == proxy.zone and (same_region or unknown):
        return 0
    return 1 if same_region else 2

"""How near a replica is to a proxy: one rule for every kind of proxy and for the picker."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Place(NamedTuple):
    """Where a proxy or a replica runs."""

    region: str | None = None
    """The region; None where the fleet gives none."""
    zone: str | None = None
    """The zone within the region; None where the fleet gives none."""


NOWHERE = Place()
"""The place of a proxy or a replica for which the fleet gives neither region nor zone."""


def distance(prefer: Literal["zone", "region"], proxy: Place, replica: Place) -> int:
    """Return 0 in the proxy's zone, 1 in its region, else 2.

    Two regions may each have a zone of the same name, so zones are equal only within one region. Where the proxy or the
    replica names no region, the zone alone decides.
    """
    same_region = proxy.region is not None and replica.region == proxy.region
    unknown = proxy.region is None or replica.region is None
    if prefer == "zone" and proxy.zone is not None and replica.zone == proxy.zone and (same_region or unknown):
        return 0
    return 1 if same_region else 2

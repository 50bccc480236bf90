"""Rules about the failure of a zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lbctl.ir.pools import Replica
from lbctl.ir.routes import Forward, Route
from lbctl.ir.shares import in_regions
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule


@rule("LB219")
def zone_loss_sheds_pool(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report load shedding that begins when the largest zone fails (LB219)."""
    for pool in fleet.pools:
        active = [replica for replica in pool.replicas if not replica.drain]
        zones = _zones(active)
        if pool.load_shedding is None or not zones:
            continue
        zone, in_zone = zones.most_common(1)[0]
        remaining = 100 * (len(active) - in_zone) / len(active)
        if remaining < pool.load_shedding.min_healthy:
            message = f"if zone {zone} fails, {remaining:.0f} % of the replicas remain, and the whole pool returns 503"
            hint = (
                f"set at most {remaining:.0f}%, or add replicas in other zones"
                if remaining
                else "add replicas in a second zone"
            )
            yield RuleFinding(("pools", pool.name, "health", "load_shedding", "min_healthy"), message, hint)


@rule("LB220")
def residency_in_one_zone(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report routes with data residency whose replicas are all in one zone (LB220)."""
    for route, action in fleet.forwards:
        zones = _zones(_resident(fleet, route, action)) if route.regions else Counter[str]()
        if len(zones) == 1:
            message = f"all replicas that this route can use are in zone {next(iter(zones))}"
            hint = "add replicas in a second zone of these regions"
            yield RuleFinding(("routes", route.name, "regions"), message, hint)


def _resident(fleet: FleetView, route: Route, action: Forward) -> list[Replica]:
    return [
        replica
        for name in action.pools
        for replica in fleet.pool(name).replicas
        if in_regions(replica, route.regions) and not replica.drain
    ]


def _zones(replicas: list[Replica]) -> Counter[str]:
    """Count replicas by zone; return an empty counter if a replica has no zone."""
    zones = [replica.zone for replica in replicas if replica.zone is not None]
    return Counter(zones) if len(zones) == len(replicas) else Counter()

"""Rules about the load that the command line states, against the capacity of the fleet."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir import stability
from lbctl.lint.fleet_view import FleetView
from lbctl.lint.rule import RuleFinding, rule


@rule("LB221", needs_load=True)
def high_utilisation(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB221: a utilisation from 80 % to 100 %."""
    utilisation = _utilisation(fleet)
    if utilisation is not None and stability.BUSY <= utilisation[0] < 1:
        yield RuleFinding(
            ("pools",),
            f"{utilisation[1]}: {utilisation[0]:.0%} busy, and queues grow from 80 % on",
            stability.advice(utilisation[0]),
        )


@rule("LB222", needs_load=True)
def overload(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB222: a utilisation of 100 % or more."""
    utilisation = _utilisation(fleet)
    if utilisation is not None and utilisation[0] >= 1:
        yield RuleFinding(
            ("pools",),
            f"{utilisation[1]}: {utilisation[0]:.0%} of it, and no algorithm saves that",
            stability.advice(utilisation[0]),
        )


def _utilisation(fleet: FleetView) -> tuple[float, str] | None:
    """The utilisation of the fleet, as a number and as text; None without a stated load."""
    load = fleet.load
    used_pools = {share.pool for _, action in fleet.forwards for share in action.shares if share.weight}
    slots = [_slots(fleet, name) for name in used_pools]
    if load is None or not any(slots):
        return None
    offered = load.rate * load.mean_service
    description = (
        f"{load.rate:g}/s × {load.mean_service:g} s = {offered:g} requests at once, and the fleet works on {sum(slots)}"
    )
    return stability.utilisation(load.rate, (number / load.mean_service for number in slots)), description


def _slots(fleet: FleetView, name: str) -> int:
    pool = fleet.pool(name)
    per_replica = pool.circuit_breaker.replica_max_requests or 1
    return per_replica * sum(not replica.drain for replica in pool.replicas)

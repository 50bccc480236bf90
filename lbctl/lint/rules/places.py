"""What is left of a pool when a zone goes dark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lbctl.ir.pools import Replica
from lbctl.ir.routes import Forward, Route
from lbctl.lint.rule import Found, rule
from lbctl.lint.sample import sample
from lbctl.lint.subject import Subject


def _zoned(*zones: str) -> str:
    return "".join(
        f'- {{name: {chr(97 + index)}, address: "10.0.0.{index + 1}:8000", gpu: H100-SXM, region: us, zone: {zone}}}\n'
        for index, zone in enumerate(zones)
    )


@rule(
    "LB219",
    "warning",
    "one dead zone sheds the whole pool",
    what="A pool with load shedding falls under its `min_healthy` when its largest zone dies.",
    why="Shedding answers 503 to everybody: what was to be the loss of a zone is then the loss of the model, though "
    "the GPUs of the other zones are well.",
    before=sample("health: {load_shedding: {min_healthy: 50%}}\n", replicas=_zoned("us-a", "us-a", "us-b")),
    after=sample("health: {load_shedding: {min_healthy: 50%}}\n", replicas=_zoned("us-a", "us-b")),
    ignore="The other zones truly cannot carry anything useful by themselves.",
)
def sheds_with_a_zone(fleet: Subject) -> Iterator[Found]:
    for pool in fleet.pools:
        there = [item for item in pool.replicas if not item.drain]
        zones = _zones(there)
        if pool.load_shedding is None or not zones:
            continue
        zone, most = zones.most_common(1)[0]
        left = 100 * (len(there) - most) / len(there)
        if left < pool.load_shedding.min_healthy:
            message = f"without zone {zone} {left:.0f} % of the replicas are left, and the whole pool answers 503"
            hint = f"at most {left:.0f}%, or more replicas in other zones" if left else "replicas in a second zone"
            yield Found(("pools", pool.name, "health", "load_shedding", "min_healthy"), message, hint)


@rule(
    "LB220",
    "warning",
    "residency that hangs on one zone",
    what="All replicas that a route may use within its `regions` stand in one zone.",
    why="Residency never goes elsewhere, also when nothing is left: one dead zone and the route answers 503, however "
    "many GPUs are free in other regions.",
    before=sample(
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, regions: [us]}\n", replicas=_zoned("us-a", "us-a")
    ),
    after=sample(
        routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, regions: [us]}\n", replicas=_zoned("us-a", "us-b")
    ),
    ignore="The region has one zone, or the law outweighs the outage.",
)
def resident_in_one_zone(fleet: Subject) -> Iterator[Found]:
    for route, action in fleet.forwards:
        zones = _zones(_resident(fleet, route, action)) if route.regions else Counter[str]()
        if len(zones) == 1:
            message = f"every replica that this route may use is in zone {next(iter(zones))}"
            yield Found(("routes", route.name, "regions"), message, "replicas in a second zone of these regions")


def _resident(fleet: Subject, route: Route, action: Forward) -> list[Replica]:
    return [
        item
        for name in action.pools
        for item in fleet.pool(name).replicas
        if item.region in route.regions and not item.drain
    ]


def _zones(replicas: list[Replica]) -> Counter[str]:
    """Zone → replicas; nothing where one of them does not say its zone."""
    zones = [item.zone for item in replicas if item.zone is not None]
    return Counter(zones) if len(zones) == len(replicas) else Counter()

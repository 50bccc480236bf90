"""Envoys in different zones get the same replicas in a different order: each its own zone first."""

from __future__ import annotations

import time
from typing import Any

from tests.support.processes.control import controlling, driven
from tests.support.processes.driving import change, loaded, synced
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.replicas import Replica, replicas


def _pool(members: list[Replica], **more: Any) -> dict[str, Any]:
    """Return a pool of these replicas; a replica's name decides its zone."""
    zones = {"a": ("east", "east-a"), "b": ("east", "east-b"), "c": ("west", "west-c")}
    placed = [entry(item, region=zones[item.name][0], zone=zones[item.name][1], **more) for item in members]
    return {"replicas": placed, "locality": {"prefer": "zone"}, "balance": {"algorithm": "round_robin"}}


def test_envoy_prefers_its_zone_and_then_its_region() -> None:
    with replicas("a", "b", "c") as members:
        fleet = fleet_of(_pool(members), **driven("in-a", "in-b", "in-c"))
        with (
            controlling(fleet) as control,
            control.envoy("in-a", ["in-a"], region="east", zone="east-a") as first,
            control.envoy("in-b", ["in-b"], region="east", zone="east-b", delta=False) as second,
            control.envoy("in-c", ["in-c"], region="west", zone="west-c") as third,
            loaded([first, second, third], 60) as loads,
        ):
            synced(control)
            assert {node: row["zone"] for node, row in control.proxies.items()} == {
                "in-a": "east-a", "in-b": "east-b", "in-c": "west-c",
            }  # fmt: skip
            now = time.monotonic()
            time.sleep(0.4)
            assert [set(load.since(now).by_replica) for load in loads] == [{"a"}, {"b"}, {"c"}]

            change(control, {**fleet, "pools": {"pool": _pool(members[1:])}})
            now = time.monotonic()
            time.sleep(0.4)
            assert [set(load.since(now).by_replica) for load in loads] == [{"b"}, {"b"}, {"c"}]

"""Steps of rollouts that are in force, because proxies have acknowledged them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lbctl.control import rollouts, splits
from lbctl.control.rollouts import RolloutState, act, reconcile, step_id
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.serve.ha.presence import MemberInfo, read_info, steps_of_others, write_info
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.store.interface import Presence
from tests.support.fleets import fleet_of, load_fleet, pool, replica

STEPS = [{"percent": "20%", "hold": "1m"}, {"percent": "50%", "hold": "1m"}, {"percent": "100%"}]


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    route = {
        "match": {"path_prefix": "/"},
        "listeners": ["gateway"],
        "split": {"old": 4, "new": 0},
        "rollout": {"to": "new", "mode": "timed", "steps": STEPS},
    }
    fleet = fleet_of(
        listeners={"inner": {"bind": "127.0.0.1:8081"}},
        routes={"everything": route},
        pools={name: pool(replica("r")) for name in ("old", "new")},
        proxies={
            "of-gateway": {"kind": "envoy", "nodes": ["g-*"], "listeners": ["gateway"]},
            "of-inner": {"kind": "envoy", "nodes": ["i-*"], "listeners": ["inner"]},
        },
    )
    return load_fleet(tmp_path, fleet).compiled.topology


@dataclass(frozen=True)
class Row:
    proxy: str | None = "of-gateway"
    kind: str = "envoy"
    connected: bool = True
    state: str = "SYNCED"
    last_good: str = "first"


class RolloutAtSecondStep:
    """The states of a rollout at its second step, and the snapshots of both steps."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        rollout = topology.routes[0].rollout
        assert rollout is not None
        first = reconcile((), topology, 0)
        self.states: tuple[RolloutState, ...] = (act(first[0], rollout, "promote", 1),)
        self.snapshots = {"first": self._snapshot(first), "second": self._snapshot(self.states)}

    def _snapshot(self, states: tuple[RolloutState, ...]) -> Snapshot:
        return Snapshot(splits.apply(self.topology, rollouts.splits(states, self.topology)))

    def is_in_force(self, *rows: Row, announced: tuple[str, ...] = ()) -> bool:
        steps = StepsInForce(lambda: rows, self.snapshots.get, lambda: announced)
        return steps.routes(self.states, self.topology) == {"everything"}


def test_step_is_in_force_once_a_connected_proxy_acknowledged_it(topology: Topology) -> None:
    rollout = RolloutAtSecondStep(topology)
    acknowledged = Row(last_good="second")
    assert rollout.is_in_force(Row(), acknowledged)
    assert rollout.is_in_force(Row(proxy=None, last_good="second")), "a node of a fleet without `proxies`"
    assert rollout.is_in_force(Row(state="STALE", last_good="second")), "it has not acknowledged what came later"
    assert not rollout.is_in_force()
    assert not rollout.is_in_force(Row()), "it has the step before"
    assert not rollout.is_in_force(replace(acknowledged, last_good="unknown"))
    assert not rollout.is_in_force(replace(acknowledged, connected=False))
    assert not rollout.is_in_force(replace(acknowledged, kind="reader"))
    assert not rollout.is_in_force(replace(acknowledged, state="REFUSED"))
    assert not rollout.is_in_force(replace(acknowledged, proxy="of-inner")), "it has other listeners, without the route"


def test_proxies_of_all_members_count(topology: Topology) -> None:
    rollout = RolloutAtSecondStep(topology)
    own = StepsInForce(lambda: [Row(last_good="second")], rollout.snapshots.get, lambda: ())
    announcement = write_info(MemberInfo("cp-2", steps=own.own(rollout.states, topology)))
    members = (MemberInfo("cp-1"), read_info(Presence("cp-2", "x", announcement)))
    assert rollout.is_in_force(announced=tuple(steps_of_others(members, "cp-1")))
    assert not rollout.is_in_force(announced=tuple(steps_of_others(members, "cp-2"))), "its own are asked anew"
    before = step_id(reconcile((), topology, 0)[0])
    assert not rollout.is_in_force(announced=(before,)), "the other member's proxies have the step before"


@pytest.mark.parametrize("announcement", ["[]", "[1]", '"x"', "5", "null", "{", '{"nonsense": 1}'])
def test_invalid_announcement_keeps_only_the_name(announcement: str) -> None:
    read = read_info(Presence("cp-2", "x", announcement))
    assert (read.name, read.role, read.steps) == ("cp-2", "", ())


@pytest.mark.parametrize("steps", ["null", "5", '{"a": 1}'])
def test_announcement_with_invalid_steps_keeps_only_the_name(steps: str) -> None:
    read = read_info(Presence("cp-2", "x", f'{{"role": "leader", "steps": {steps}}}'))
    assert (read.name, read.role, read.steps) == ("cp-2", "", ())
    assert "steps" in read.problem

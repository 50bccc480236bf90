"""Which steps of rollouts the proxies have, by what they have acknowledged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.control import rollouts, splits
from lbctl.control.rollouts import RolloutState, act, follow, step_id
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.serve.ha.presence import MemberInfo, read_info, steps_of_others, write_info
from lbctl.serve.operator.steps_in_force import StepsInForce
from lbctl.serve.state.interface import Presence
from lbctl.targets.load import load

STEPS = [{"percent": "20%", "hold": "1m"}, {"percent": "50%", "hold": "1m"}, {"percent": "100%"}]


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    route = {
        "match": {"path_prefix": "/"},
        "listeners": ["a"],
        "split": {"old": 4, "new": 0},
        "rollout": {"to": "new", "mode": "timed", "steps": STEPS},
    }
    text = {
        "version": 1,
        "listeners": {"a": {"bind": "127.0.0.1:8080"}, "b": {"bind": "127.0.0.1:8081"}},
        "routes": {"chat": route},
        "pools": {name: {"replicas": [{"name": "r", "address": "127.0.0.1:9"}]} for name in ("old", "new")},
        "proxies": {
            "of-a": {"kind": "envoy", "nodes": ["a-*"], "listeners": ["a"]},
            "of-b": {"kind": "envoy", "nodes": ["b-*"], "listeners": ["b"]},
        },
    }
    (tmp_path / "fleet.yaml").write_text(json.dumps(text))
    loaded = load([str(tmp_path / "fleet.yaml")], Diagnostics())
    assert loaded is not None
    return loaded.compiled.topology


def row(**more: Any) -> dict[str, Any]:
    return {"proxy": "of-a", "connected": True, "state": "SYNCED", "last_good": "first", "reader": False, **more}


class Fleet:
    """A rollout at its second step, and the snapshots of both steps."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        rollout = topology.routes[0].rollout
        assert rollout is not None
        first = follow((), topology, 0)
        self.states: tuple[RolloutState, ...] = (act(first[0], rollout, "promote", 1),)
        self.snapshots = {"first": self._snapshot(first), "second": self._snapshot(self.states)}

    def _snapshot(self, states: tuple[RolloutState, ...]) -> Snapshot:
        return Snapshot(splits.apply(self.topology, rollouts.splits(states, self.topology)))

    def in_force(self, *rows: dict[str, Any], announced: tuple[str, ...] = ()) -> bool:
        steps = StepsInForce(lambda: rows, self.snapshots.get, lambda: announced)
        return steps.routes(self.states, self.topology) == {"chat"}


def test_a_step_is_in_force_when_a_connected_proxy_of_its_route_has_acknowledged_its_shares(topology: Topology) -> None:
    fleet = Fleet(topology)
    has_it = row(last_good="second")
    assert fleet.in_force(row(), has_it)
    assert fleet.in_force(row(proxy=None, last_good="second")), "a node of a fleet without `proxies`"
    assert fleet.in_force(row(state="STALE", last_good="second")), "it has not acknowledged what came later"
    assert not fleet.in_force()
    assert not fleet.in_force(row()), "it has the step before"
    assert not fleet.in_force(has_it | {"last_good": "unknown"})
    assert not fleet.in_force(has_it | {"connected": False})
    assert not fleet.in_force(has_it | {"reader": True})
    assert not fleet.in_force(has_it | {"state": "REFUSED"})
    assert not fleet.in_force(has_it | {"proxy": "of-b"}), "it has other listeners, without the route"


def test_of_several_members_the_proxies_of_all_count(topology: Topology) -> None:
    fleet = Fleet(topology)
    own = StepsInForce(lambda: [row(last_good="second")], fleet.snapshots.get, lambda: ())
    said = write_info(MemberInfo("cp-2", steps=own.own(fleet.states, topology)))
    heard = (MemberInfo("cp-1"), read_info(Presence("cp-2", "x", said)))
    assert fleet.in_force(announced=tuple(steps_of_others(heard, "cp-1")))
    assert not fleet.in_force(announced=tuple(steps_of_others(heard, "cp-2"))), "its own are asked anew"
    before = step_id(follow((), topology, 0)[0])
    assert not fleet.in_force(announced=(before,)), "the other member's proxies have the step before"


@pytest.mark.parametrize("said", ["[]", "[1]", '"x"', "5", "null", "{", '{"nonsense": 1}'])
def test_of_an_announcement_that_is_none_the_name_is_left(said: str) -> None:
    read = read_info(Presence("cp-2", "x", said))
    assert (read.name, read.role, read.steps) == ("cp-2", "", ())


@pytest.mark.parametrize("steps", ["null", "5", '{"a": 1}'])
def test_steps_in_another_form_leave_the_rest_of_an_announcement(steps: str) -> None:
    read = read_info(Presence("cp-2", "x", f'{{"role": "leader", "steps": {steps}}}'))
    assert (read.name, read.role, read.steps) == ("cp-2", "leader", ())

"""Several members of one control plane with a real Redis and real Envoys."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from functools import partial

from lbctl.apply.haproxy.runtime import Runtime
from lbctl.serve.ha.sharing import owner_of
from lbctl.store.audit import CONTROL_PLANE
from tests.support.processes import background, edges
from tests.support.processes.control import XdsEnvoy, settled
from tests.support.processes.engines import engines
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.lbctl_process import short_pauses
from tests.support.processes.members import MemberPlane, bootstrap_of_members, members
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually
from tests.support.stores import RedisServer


def _samplers(plane: MemberPlane) -> dict[str, str | None]:
    """Return pool → the other member whose sample its newest decision uses, without pools that have no sample."""
    rows = plane.control.get("decisions")["decisions"]
    return {row["pool"]: row["sampled_by"] for row in rows if row["signals"]}


def _owns(reader: MemberPlane, plane: MemberPlane, pools: set[str]) -> bool:
    """Whether `reader` knows that `plane` scrapes these pools, and `plane` counts them."""
    announced = reader.rows[plane.name]["pools"]
    return set(announced) == pools and plane.control.metric("lbctl_ha_owned_pools") == len(pools)


def _updates(edge: XdsEnvoy) -> dict[str, int]:
    """Return the counts of updates that an Envoy accepted and rejected, without its attempts."""
    return {name: count for name, count in edge.updates().items() if not name.endswith("attempt")}


def _in_step(planes: tuple[MemberPlane, ...]) -> bool:
    return len({item.version for item in planes}) == 1


def test_members_serve_the_same_and_replace_a_killed_leader(redis: RedisServer) -> None:
    with replicas("a", "b") as (a, b):
        fleet = fleet_of([a, b])
        with members(fleet, f"redis://127.0.0.1:{redis.port}/0", lease="15s", signed=True) as (first, second):
            assert first.leads
            assert not second.leads
            eventually(lambda: _in_step((first, second)))
            with second.control.envoy("edge") as edge:
                client = edge.client()
                pool = next(iter(fleet["pools"]))
                answer = second.write("POST", "overrides", {"kind": "drain", "pool": pool, "replica": "a"})
                assert answer.status_code == 200, answer.text
                eventually(lambda: {client.get("/").replica for _ in range(8)} == {"b"})
                eventually(lambda: _in_step((first, second)))
                eventually(lambda: first.control.get("overrides") == second.control.get("overrides"))
                settled(edge)
                updates = edge.updates()
                version, epoch = second.version, second.epoch
                first.control.kill()
                eventually(lambda: second.leads)
                assert second.epoch > epoch
                assert second.version == version, "a takeover changes nothing that proxies have"
                assert {client.get("/").replica for _ in range(8)} == {"b"}
                assert edge.updates() == updates
                assert second.write("DELETE", "overrides", {"kind": "drain", "pool": pool, "replica": "a"}).ok
                eventually(lambda: {client.get("/").replica for _ in range(8)} == {"a", "b"})
                first.control.start()
                assert not first.leads
                eventually(lambda: _in_step((first, second)))


def test_envoy_of_a_killed_member_gets_no_resources_again(redis: RedisServer) -> None:
    names = [f"pool-{number}" for number in range(6)]
    owners = {name: owner_of(name, ("cp-1", "cp-2")) for name in names}
    assert set(owners.values()) == {"cp-1", "cp-2"}
    with engines(*names) as replicas:
        sources = [{"kind": "vllm", "url": "http://{address}/metrics"}]
        telemetry = {"interval": "500ms", "timeout": "2s", "sources": sources}
        pools = {name: pool_of([item], telemetry=telemetry) for name, item in zip(names, replicas, strict=True)}
        routes = {name: {"match": {"path_prefix": f"/{name}/"}, "pool": name} for name in names}
        fleet = fleet_of(replicas, routes=routes, pools=pools)
        with members(fleet, f"redis://127.0.0.1:{redis.port}/0", lease="60s") as (first, second):
            eventually(lambda: _samplers(first) == {name: by if by != "cp-1" else None for name, by in owners.items()})
            for plane in (first, second):
                own = {name for name, by in owners.items() if by == plane.name}
                eventually(partial(_owns, first, plane, own))
            with first.control.envoy("edge", bootstrap=bootstrap_of_members((second, first), "edge")) as edge:
                settled(edge)
                assert second.control.proxies["edge"]["connected"]
                updates, version = _updates(edge), first.version
                second.control.kill()
                before = {item.name: item.scrapes for item in replicas}
                eventually(lambda: all(item.scrapes > before[item.name] + 1 for item in replicas))
                eventually(lambda: _samplers(first) == dict.fromkeys(names))
                eventually(lambda: first.control.proxies["edge"]["state"] == "SYNCED")
                assert _updates(edge) == updates
                assert first.control.metric("lbctl_xds_pushed_resources_total") == 0
                assert first.version == version


def _steps(plane: MemberPlane) -> list[str]:
    """Return the actions of the control plane on the rollout, from the audit log."""
    rows = plane.control.get("audit")["records"]
    return [row["action"] for row in rows if row["actor"] == CONTROL_PLANE and row["action"].startswith("rollout ")]


def test_rollout_does_each_step_once_despite_a_killed_leader(redis: RedisServer) -> None:
    shares = (10, 40, 70, 100)
    with replicas("a", "b") as (a, b):
        steps = [{"percent": f"{share}%", "hold": "1s"} for share in shares]
        rollout = {"to": "new", "mode": "timed", "steps": steps}
        route = {"match": {"path_prefix": "/"}, "split": {"old": 100, "new": 0}, "rollout": rollout}
        pools = {"old": pool_of([a], model={"name": "m"}), "new": pool_of([b], model={"name": "n"})}
        fleet = fleet_of([a, b], routes={"everything": route}, pools=pools)
        with (
            short_pauses({"lbctl.serve.operator.rollouts._INTERVAL": 0.3}),
            members(fleet, f"redis://127.0.0.1:{redis.port}/0", lease="8s", start=False) as (first, second),
        ):
            first.control.start()
            eventually(lambda: first.leads and _steps(first) != [], pause=0.02)
            assert first.write("POST", "rollouts", {"route": "everything", "action": "pause"}).ok
            second.control.start()
            eventually(lambda: second.control.rollout["phase"] == "paused")
            before = len(_steps(first))
            with second.control.envoy("edge", bootstrap=bootstrap_of_members((second, first), "edge")):
                assert first.write("POST", "rollouts", {"route": "everything", "action": "resume"}).ok
                eventually(lambda: len(_steps(first)) > before, pause=0.02)  # the other member's Envoy has the step
                first.control.kill()
                done = [f"rollout progressing (step {step}, {share} %)" for step, share in enumerate(shares, 1)]
                eventually(lambda: second.leads and _steps(second)[len(done) :] != [])
            assert _steps(second) == [*done, "rollout promoted (step 4, 100 %)"]


def test_resumed_old_leader_changes_no_haproxy(redis: RedisServer) -> None:
    with ExitStack() as stack:
        a, b = stack.enter_context(replicas("a", "b"))
        site = stack.enter_context(edges.haproxy())
        fleet = edges.add(fleet_of([a, b]), site)
        del fleet["listeners"]["gateway"]
        stack.enter_context(edges.started_edge(site, fleet))
        first, second = stack.enter_context(members(fleet, f"redis://127.0.0.1:{redis.port}/0", lease="8s"))
        pool = next(iter(fleet["pools"]))

        def drained() -> bool:
            question = Runtime(str(site.directory / "admin.sock")).query("show servers state")
            rows = [row.split() for row in "".join(background.wait(question).texts).splitlines()]
            return next(int(row[6]) & 0x0C for row in rows if row[1:2] == [f"pool_{pool}"] and row[3] == "a") != 0

        override = {"kind": "drain", "pool": pool, "replica": "a"}
        assert first.write("POST", "overrides", override).ok
        eventually(drained)
        first.control.signal(signal.SIGSTOP)
        eventually(lambda: second.leads)
        assert second.write("DELETE", "overrides", override).ok
        eventually(lambda: not drained())
        first.control.signal(signal.SIGCONT)
        eventually(lambda: not first.leads)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            assert not drained()

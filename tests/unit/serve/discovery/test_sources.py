"""All sources of replicas are treated the same, shown with a toy source that lbctl does not contain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply.nginx.driver import prepared
from lbctl.compile.fleet import Compiled
from lbctl.ir.address import Address
from lbctl.ir.pools import Discovery as PoolDiscovery
from lbctl.ir.pools import FileDiscovery, Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.runtime.guard import Guard
from lbctl.serve.discovery import sources
from lbctl.serve.discovery.sources import SOURCES
from lbctl.serve.metrics.instruments import Metrics
from lbctl.targets.features import FEATURES
from lbctl.targets.load import Loaded
from lbctl.xds.resource import EDS
from tests.support.discovery import ToyDiscovery, ToySource, toy_replica, with_toy
from tests.support.fleets import fleet_of, load_fleet, pool, replica
from tests.support.publishing import Publishing

FLEET = fleet_of(
    routes={name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in ("llama", "filed")},
    pools={
        "llama": pool(replica("r", "10.9.9.9:8000"), locality={"prefer": "zone"}, drain_deadline="30s"),
        "filed": {"discovery": {"file": {"path": "targets.json"}}},
    },
    proxies={"edge": {"kind": "envoy", "region": "here", "zone": "a"}},
)
A = toy_replica("a", 1, region="here", zone="a", gpu="L4", capacity=2.0, labels=(("rack", "7"),))
B = toy_replica("b", 2, region="here", zone="b", priority=1, capacity=4.0)
FOUR = (A, B, toy_replica("c", 3), toy_replica("d", 4))


def loaded(directory: Path, discovery: PoolDiscovery, targets: str = '["10.1.0.1:80", "10.1.0.2:80"]') -> Loaded:
    """Return the fleet with `discovery` in place of the replicas of the pool llama."""
    (directory / "targets.json").write_text(f'[{{"targets": {targets}, "labels": {{"zone": "a"}}}}]')
    fleet = load_fleet(directory, FLEET)
    topology = fleet.compiled.topology
    pools = tuple(
        replace(pool, replicas=(), discovery=discovery) if pool.name == "llama" else pool for pool in topology.pools
    )
    return replace(fleet, compiled=Compiled(replace(topology, pools=pools), fleet.compiled.sources))


@dataclass
class Running:
    """A publisher with the toy source. `now` is its clock."""

    publishing: Publishing
    metrics: Metrics
    toy: ToySource
    directory: Path
    now: list[float]

    @property
    def pool(self) -> Pool:
        return next(pool for pool in self.publishing.served.composed.whole.topology.pools if pool.name == "llama")

    @property
    def sent(self) -> str:
        """Return the endpoints that an Envoy receives, as text."""
        served = self.publishing.served
        (edge,) = (proxy for proxy in served.composed.whole.topology.proxies if proxy.kind == "envoy")
        return repr(served.cached_snapshot.resources(edge).of(EDS)["llama"].body)

    async def say(self, *replicas: Any) -> None:
        self.toy.say("llama", *replicas)
        await self.apply()

    async def apply(self) -> None:
        """Publish the discovery answers."""
        live = self.publishing.live
        await live.apply(replace(live.inputs, discovered=self.publishing.discovery.current), "discovery")


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Running], Awaitable[None]]], None]:
    """Run the work of a test with a fleet whose pool llama is discovered by the toy."""
    toys: list[ToySource] = []
    monkeypatch.setattr(sources, "SOURCES", with_toy(toys))

    def run(work: Callable[[Running], Awaitable[None]]) -> None:
        async def start_and_run() -> None:
            now, metrics = [1000.0], Metrics()
            publishing = Publishing(metrics=metrics, guard=Guard(metrics.task_failed), now=lambda: now[0])
            fleet = Running(publishing, metrics, toys[-1], tmp_path, now)
            fleet.toy.say("llama", *FOUR)
            await publishing.publish(loaded(tmp_path, ToyDiscovery()))
            try:
                await work(fleet)
            finally:
                await publishing.end()

        asyncio.run(asyncio.wait_for(start_and_run(), 120))

    return run


Run = Callable[[Callable[[Running], Awaitable[None]]], None]


def test_replicas_are_served_with_zone_priority_and_labels(running: Run) -> None:
    async def work(fleet: Running) -> None:
        assert fleet.pool.replicas == FOUR
        assert fleet.publishing.live.accepted.answers == {"toy:llama": ("seen",)}
        assert "10.0.0.1" in fleet.sent
        await fleet.say(*FOUR[:3])
        assert fleet.pool.replicas == FOUR[:3]
        assert "10.0.0.4" not in fleet.sent

    running(work)


def test_terminating_replica_is_removed_after_the_deadline(running: Run) -> None:
    async def work(fleet: Running) -> None:
        await fleet.say(replace(A, drain=True), *FOUR[1:])
        served = fleet.publishing.served
        assert served.composed.drains == {("llama", "a"): 1000.0}
        assert fleet.publishing.live.seconds_to_next_deadline() == 30.0
        fleet.now[0] = 1031.0
        await fleet.apply()
        assert fleet.publishing.served.composed.removed == {"llama": frozenset({"a"})}
        assert "10.0.0.1" not in fleet.sent

    running(work)


def test_failed_source_removes_no_replicas(running: Run) -> None:
    async def work(fleet: Running) -> None:
        fleet.toy.broken = True
        fleet.toy.changed()
        await fleet.apply()
        assert fleet.pool.replicas == FOUR
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery()))
        assert fleet.pool.replicas == FOUR
        fleet.toy.broken = False
        fleet.toy.forget("llama")
        await fleet.apply()
        assert fleet.pool.replicas == FOUR

    running(work)


def test_nginx_gets_replicas_instead_of_a_live_source(running: Run) -> None:
    async def work(fleet: Running) -> None:
        served = fleet.publishing.served
        pools = prepared(Proxy("web", "nginx", (1, 27, 3)), served.loaded, served.composed.snapshot).view.pools
        assert (pools["llama"].discovery, pools["llama"].replicas) == (None, FOUR)
        assert pools["filed"].discovery == FileDiscovery("targets.json")

    running(work)


def failures(fleet: Running) -> float | None:
    """Return the metric that counts failures of sources."""
    return fleet.metrics.registry.get_sample_value("lbctl_task_failures_total", {"task": "source of replicas"})


def test_source_failing_to_follow_is_logged_and_counted(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work(fleet: Running) -> None:
        fleet.toy.broken = True
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery(), '["10.1.0.3:80"]'))
        assert [str(item.address) for item in fleet.publishing.live.accepted.pools["filed"]] == ["10.1.0.3:80"]
        assert fleet.pool.replicas == FOUR
        assert failures(fleet)
        assert {record.__dict__["fields"]["kind"] for record in caplog.records if record.levelname == "ERROR"} == {
            "toy"
        }

    running(work)


def test_failed_change_of_service_drops_the_old_replicas(running: Run) -> None:
    async def work(fleet: Running) -> None:
        use_topology = fleet.toy.use_topology
        fleet.toy.use_topology = lambda _: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery("mistral")), allow_shrink=True)
        assert fleet.pool.replicas == ()
        fleet.toy.use_topology = use_topology  # type: ignore[method-assign]
        fleet.toy.say("mistral", *FOUR[:2])
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery("mistral")))
        assert fleet.pool.replicas == FOUR[:2]

    running(work)


def test_source_failing_to_restore_answers_is_counted(running: Run) -> None:
    async def work(fleet: Running) -> None:
        fleet.toy.broken = True
        fleet.publishing.discovery.seed({"toy:llama": ("seen",)})
        assert failures(fleet) == 1.0
        assert fleet.toy.seeds == {}

    running(work)


INVALID: dict[str, tuple[tuple[Any, ...], str]] = {
    "no replica": ((*FOUR, "10.0.0.5:80"), "is not a replica"),
    "priority": ((*FOUR, toy_replica("e", 5, priority=-1)), "priority"),
    "weight": ((*FOUR, toy_replica("e", 5, capacity=float("nan"))), "weight"),
    "name": ((*FOUR, toy_replica("e\n}", 5)), "name"),
    "zone": ((*FOUR, toy_replica("e", 5, zone='a"; }')), "zone"),
    "labels": ((*FOUR, toy_replica("e", 5, labels=(("k", "a\nb"),))), "labels"),
    "unhashable": ((*FOUR, toy_replica("e", 5, labels=[["k", "v"]])), "unsupported type"),
    "same name": ((*FOUR, toy_replica("a", 5)), "two replicas have the name"),
    "same address": ((*FOUR, toy_replica("e", 4)), "two replicas have the address"),
    "metadata": ((*FOUR, Replica("e", Address("169.254.169.254", 80))), "not valid for a replica"),
    "mapped": ((*FOUR, Replica("e", Address("::ffff:169.254.169.254", 80))), "not valid for a replica"),
    "NAT64": ((*FOUR, Replica("e", Address("64:ff9b::a9fe:a9fe", 80))), "not valid for a replica"),
    "socket": ((*FOUR, Replica("e", Address(path="/run/docker.sock"))), "not valid for a replica"),
    "port": ((*FOUR, Replica("e", Address("10.0.0.5", 0))), "address"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_answer_is_rejected_with_a_diagnostic(running: Run, kind: str) -> None:
    replicas, words = INVALID[kind]

    async def work(fleet: Running) -> None:
        await fleet.say(*replicas)
        assert fleet.pool.replicas == FOUR
        (problem,) = fleet.publishing.served.refused_answers
        assert (problem.code, problem.path) == ("LB933", ("pools", "llama", "discovery"))
        assert words in problem.message
        assert "toy" in problem.message
        assert problem.position is not None
        await fleet.say(*FOUR[:3])
        assert fleet.pool.replicas == FOUR[:3]
        assert fleet.publishing.served.refused_answers == ()

    running(work)


@pytest.mark.parametrize("left", [0, 1])
def test_answer_that_removes_most_replicas_needs_confirmation(running: Run, left: int) -> None:
    async def work(fleet: Running) -> None:
        await fleet.say(*FOUR[:left])
        assert fleet.pool.replicas == FOUR
        assert {item.code for item in fleet.publishing.served.refused_answers} == {"LB930"}
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery()), allow_shrink=True)
        assert fleet.pool.replicas == FOUR[:left]
        assert fleet.publishing.served.refused_answers == ()

    running(work)


def test_changed_service_drops_the_old_replicas(running: Run) -> None:
    async def work(fleet: Running) -> None:
        fleet.toy.say("mistral", toy_replica("x", 9), *FOUR[1:])
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery("mistral")))
        assert [item.name for item in fleet.pool.replicas] == ["x", "b", "c", "d"]

    running(work)


def test_saved_answers_are_passed_to_every_source(running: Run) -> None:
    async def work(fleet: Running) -> None:
        fleet.publishing.discovery.seed({"toy:llama": ("seen",), "embedder.test": ("10.0.0.7",)})
        assert fleet.toy.seeds == {"toy:llama": ("seen",)}

    running(work)


def test_target_file_is_a_source_read_by_the_compiler(running: Run) -> None:
    async def work(fleet: Running) -> None:
        filed = fleet.publishing.live.accepted.pools["filed"]
        assert [(str(item.address), item.zone) for item in filed] == [("10.1.0.1:80", "a"), ("10.1.0.2:80", "a")]
        await fleet.publishing.publish(loaded(fleet.directory, ToyDiscovery(), '["10.1.0.3:80"]'))
        assert [str(item.address) for item in fleet.publishing.live.accepted.pools["filed"]] == ["10.1.0.3:80"]

    running(work)


def test_sources_match_the_keys_of_discovery() -> None:
    from lbctl.model.pool import Discovery

    assert set(SOURCES.names) == set(Discovery.model_fields)


def test_every_source_has_its_own_feature() -> None:
    patterns = {key for feature in FEATURES for key in feature.keys}
    assert {f"pools.*.discovery.{kind}" for kind in SOURCES.names} <= patterns

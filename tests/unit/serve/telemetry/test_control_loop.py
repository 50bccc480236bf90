"""The control loop as it runs: reports in, what proxies are to have out; and what of that outlives the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from envoy.config.core.v3 import health_check_pb2
from prometheus_client import CollectorRegistry

from lbctl.control import overrides
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override
from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, from_capacity
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry.control_loop import ControlLoop, observation_of
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.serve.telemetry.service import saved_loop_output
from lbctl.targets.envoy.endpoints import EndpointLayout, Placement, as_written
from tests.support.control import NAME, pool, replica, seen
from tests.support.state import OpenState, led

_TELEMETRY = Telemetry(sources=(MetricsSource("vllm", "http://{host}/metrics"),))


class _Running:
    """A loop on a fleet, and its clock. `moved`: how often it has said that there is news."""

    def __init__(
        self,
        *pools: Pool,
        kept: LoopOutput = LoopOutput(),  # noqa: B008 -- a frozen value
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.now = 1000.0
        self.moved = 0
        clock = clock or (lambda: self.now)
        self.loop = ControlLoop(self._count, LatencyMetrics(CollectorRegistry(), clock), kept, clock)
        self.follow(*pools)

    def _count(self) -> None:
        self.moved += 1

    def follow(self, *pools: Pool) -> None:
        self.loop.follow(Topology((), (), pools))

    def look(self, seconds: float = 5.0, **news: dict[str, Any]) -> None:
        """A look at each of these replicas, and what is decided of them."""
        self.now += seconds
        for name, told in news.items():
            self.loop.report(_report(name, self.now, **told))
        self.loop.decide()

    def sent(self, name: str) -> float:
        return self.loop.output.weights.get(NAME, {}).get(name, from_capacity(1.0)).rate


def _report(name: str, at: float, **told: Any) -> ScrapeReport:
    state = SourceState("vllm", "http://x/metrics", at, at)
    return ScrapeReport(NAME, name, at, 0, seen(at, **told).signals, (state,))


def _fleet(*names: str, **more: Any) -> Pool:
    return pool(tuple(replica(name) for name in names), telemetry=_TELEMETRY, **more)


def test_a_slow_replica_loses_weight_and_of_the_pool_that_tells_nothing_there_is_no_word() -> None:
    silent = replace(pool(3, telemetry=None), name="silent")
    running = _Running(_fleet("a", "b", "c"), silent)
    for _ in range(6):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.sent("a") == pytest.approx(0.5, abs=0.05)
    assert running.sent("b") == 1.0
    assert set(running.loop.output.weights) == {NAME}
    assert running.loop.decisions("silent") == ()


def test_reports_that_come_together_are_one_decision() -> None:
    running = _Running(_fleet("a", "b", "c"))
    for _ in range(5):
        running.look(a={"speed": 0.5}, b={}, c={})
    steps = running.moved
    assert 0 < steps <= 5
    running.look(a={"speed": 0.5}, b={}, c={})
    assert running.moved - steps <= 1


def test_the_loop_runs_by_itself_and_a_report_is_decided_on_at_once() -> None:
    async def play() -> float:
        clock = asyncio.get_running_loop().time
        running = _Running(_fleet("a", "b"), clock=clock)
        work = asyncio.create_task(running.loop.run())
        begun = clock()
        try:
            for _ in range(40):
                for name, speed in (("a", 0.3), ("b", 1.0)):
                    running.loop.report(_report(name, clock(), speed=speed))
                await asyncio.sleep(0.02)
                if running.moved:
                    return clock() - begun
        finally:
            work.cancel()
        return 99.0

    assert asyncio.run(play()) < 0.5


def _stalled(running: _Running, name: str, looks: int) -> None:
    others = {other: {"progress": 1.0, "running": 0.0} for other in "abc" if other != name}
    for number in range(looks):
        for each in others.values():
            each["progress"] = 10.0 + number
        running.look(**{name: {"progress": 7.0, "running": 3.0}}, **others)


def test_a_stalled_replica_is_out_with_its_reason_and_an_operator_can_let_it_in() -> None:
    running = _Running(_fleet("a", "b", "c"))
    _stalled(running, "a", 6)
    assert set(running.loop.output.ejections) == {NAME}
    assert "stalled" in running.loop.output.ejections[NAME]["a"][0]
    assert running.loop.output.ejected == {NAME: frozenset({"a"})}
    running.loop.readmit(NAME, "a")
    assert running.loop.output.ejections == {}


def test_a_look_that_failed_is_no_news() -> None:
    at = 1000.0
    fine = _report("a", at)
    failed = replace(fine, at=at + 5, sources=(SourceState("vllm", "http://x", at + 5, at, "timeout", "late"),))
    never = replace(fine, sources=(SourceState("vllm", "http://x", at + 5, None, "timeout", "late"),))
    assert observation_of(fine) is not None
    found = observation_of(failed)
    assert found is not None
    assert found.at == at
    assert observation_of(never) is None


def test_a_pool_that_goes_or_stops_telling_leaves_nothing_behind() -> None:
    running = _Running(_fleet("a", "b", "c"))
    for _ in range(6):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.loop.output.weights
    running.follow(pool((replica("a"), replica("b"), replica("c")), telemetry=None))
    assert running.loop.output == LoopOutput()
    assert running.loop.reports == {}


def test_a_frozen_pool_keeps_its_weights_and_moves_again_afterwards() -> None:
    running = _Running(_fleet("a", "b", "c"))
    running.loop.freeze({NAME: "a trial"})
    for _ in range(6):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.sent("a") == 1.0
    assert running.loop.decisions(NAME)[0].mode_reason == "a trial"
    running.loop.freeze({})
    for _ in range(4):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.sent("a") < 0.6


def test_what_was_decided_before_a_restart_still_holds() -> None:
    kept = LoopOutput(
        {NAME: {"a": Weight(0.5, 1.0, 0.5), "b": from_capacity(1.0), "c": from_capacity(1.0)}},
        {NAME: {"c": ("XID 79",)}},
    )
    running = _Running(_fleet("a", "b", "c"), kept=kept)
    assert running.loop.output.weights[NAME]["a"] == Weight(0.5, 1.0, 0.5)
    assert running.loop.output.ejections == {NAME: {"c": ("XID 79",)}}
    running.look(a={"progress": 1.0}, b={"progress": 1.0}, c={"progress": 1.0})
    running.look(a={"progress": 2.0}, b={"progress": 2.0}, c={"progress": 1.0})
    for number in range(3):
        running.look(**{name: {"progress": 3.0 + number} for name in "abc"})
    assert running.loop.output.ejections, "its time begins anew with the process"
    running.look(30.0, **{name: {"progress": 6.0} for name in "abc"})
    assert running.loop.output.ejections == {}, "on trial at the floor"
    assert running.sent("c") == 0.05


# ── What is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def state(tmp_path: Path) -> Iterator[OpenState]:
    found = led(tmp_path / "state")
    yield found
    found.close()


def test_weights_of_a_minute_ago_count_older_ones_do_not_and_who_was_out_is_out(state: OpenState) -> None:
    live = LoopOutput({"p": {"a": Weight(0.5, 0.8, 0.7)}}, {"p": {"b": ("stalled",)}})
    assert asyncio.run(saved_loop_output(state.state, 1000.0)) == LoopOutput()
    state.save_loop_output(live, 1000.0)
    assert asyncio.run(saved_loop_output(state.state, 1050.0)) == live
    assert asyncio.run(saved_loop_output(state.state, 2000.0)) == LoopOutput({}, live.ejections)


def test_overrides_are_kept_as_they_were(state: OpenState) -> None:
    held = (Override("drain", "p", "a", None, "", 5.0, 10.0), Override("weight", "p", "b", 2.5, "why", 6.0))
    state.save_overrides(held)
    assert state.overrides() == held
    state.save_overrides(())
    assert state.overrides() == ()


# ── Overrides ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_override_takes_the_place_of_the_one_before_and_ends_in_time() -> None:
    first = Override("weight", "p", "a", 2.0, until=10.0)
    held = overrides.put(overrides.put((), first), replace(first, value=3.0, until=20.0))
    assert [item.value for item in held] == [3.0]
    assert overrides.current(held, 19.0) == held
    assert overrides.current(held, 20.0) == ()
    assert overrides.removed(held, ("weight", "p", "a")) == ()


def test_a_weight_by_hand_is_over_what_was_decided_and_of_what_is_gone_nothing_is_left() -> None:
    held = (Override("drain", "p", "a"), Override("freeze", "p", reason="x"), Override("weight", "p", "b", 9.0))
    decided = {"p": {"a": Weight(0.5, 1.0, 0.5), "b": Weight(1.0, 2.0, 0.5)}}
    assert overrides.apply_weights(held, decided) == {"p": {"a": Weight(0.5, 1.0, 0.5), "b": from_capacity(9.0)}}
    assert overrides.drained(held) == {"p": frozenset({"a"})}
    assert overrides.frozen(held) == {"p": "x"}
    fleet = Topology((), (), (replace(pool((replica("b"),)), name="p"),))
    assert [item.kind for item in overrides.within(held, fleet)] == ["freeze", "weight"]


# ── Who is out, to each proxy ────────────────────────────────────────────────────────────────────────────────────────


def test_who_is_out_loses_its_own_clients_and_who_is_drained_keeps_them() -> None:
    upstream = pool((Replica("a", Address("10.0.0.1", 1)), Replica("b", Address("10.0.0.2", 1))))
    layout = EndpointLayout(
        "p", upstream, frozenset({"a", "b"}), Proxy("", "envoy", ()), Placement(), as_written, frozenset({"b"})
    )
    found = [item.health_status for group in layout.unweighed.endpoints for item in group.lb_endpoints]
    assert found == [health_check_pb2.DRAINING, health_check_pb2.UNHEALTHY]

"""The running control loop: decisions from reports, restored state, and overrides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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
from lbctl.serve.api import decision_views
from lbctl.serve.api.served_state import ServedState
from lbctl.serve.metrics.latency import LatencyMetrics
from lbctl.serve.telemetry import control_loop
from lbctl.serve.telemetry.control_loop import ControlLoop, observation_of
from lbctl.serve.telemetry.decision_audit import DecisionAudit
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.serve.telemetry.saving import saved_loop_output
from lbctl.targets.envoy.endpoints import EndpointLayout, Placement, as_written
from tests.support.control import NAME, pool, replica, seen
from tests.support.state import OpenState, led
from tests.unit.serve.telemetry.test_decision_audit import Records

_TELEMETRY = Telemetry(sources=(MetricsSource("vllm", "http://{host}/metrics"),))


class _Running:
    """A loop with its pools and clock. `moved` counts its notifications."""

    def __init__(
        self,
        *pools: Pool,
        kept: LoopOutput = LoopOutput(),  # noqa: B008 -- a frozen value
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.now = 1000.0
        self.moved = 0
        clock = clock or (lambda: self.now)
        self.records = Records()
        self.audit = DecisionAudit(self.records)
        latency = LatencyMetrics(CollectorRegistry(), clock)
        self.loop = ControlLoop(self._count, latency, kept, clock, audit=self.audit)
        self.use_pools(*pools)

    def _count(self) -> None:
        self.moved += 1

    def use_pools(self, *pools: Pool) -> None:
        self.loop.use_topology(Topology((), (), pools))

    def look(self, seconds: float = 5.0, **news: dict[str, Any]) -> None:
        """Report a scrape of each of these replicas, and decide."""
        self.now += seconds
        for name, signals in news.items():
            self.loop.report(_report(name, self.now, **signals))
        self.loop.decide()

    def sent(self, name: str) -> float:
        return self.loop.output.weights.get(NAME, {}).get(name, from_capacity(1.0)).rate


def _report(name: str, at: float, **signals: Any) -> ScrapeReport:
    state = SourceState("vllm", "http://x/metrics", at, at)
    return ScrapeReport(NAME, name, at, 0, seen(at, **signals).signals, (state,))


def _pool_of(*names: str, **more: Any) -> Pool:
    return pool(tuple(replica(name) for name in names), telemetry=_TELEMETRY, **more)


def test_slow_replica_loses_weight() -> None:
    silent = replace(pool(3, telemetry=None), name="silent")
    running = _Running(_pool_of("a", "b", "c"), silent)
    for _ in range(6):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.sent("a") == pytest.approx(0.5, abs=0.05)
    assert running.sent("b") == 1.0
    assert set(running.loop.output.weights) == {NAME}
    assert running.loop.decisions("silent") == ()


def test_simultaneous_reports_are_one_decision() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    for _ in range(5):
        running.look(a={"speed": 0.5}, b={}, c={})
    steps = running.moved
    assert 0 < steps <= 5
    running.look(a={"speed": 0.5}, b={}, c={})
    assert running.moved - steps <= 1


def test_running_loop_decides_on_a_report_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_loop, "_TICK", 3600.0)

    async def play() -> None:
        clock = asyncio.get_running_loop().time
        running = _Running(_pool_of("a", "b"), clock=clock)
        work = asyncio.create_task(running.loop.run())
        async with asyncio.timeout(30):
            while not running.moved:
                for name, speed in (("a", 0.3), ("b", 1.0)):
                    running.loop.report(_report(name, clock(), speed=speed))
                await asyncio.sleep(0.02)
        work.cancel()

    asyncio.run(play())


def _stalled(running: _Running, name: str, looks: int) -> None:
    others = {other: {"progress": 1.0, "running": 0.0} for other in "abc" if other != name}
    for number in range(looks):
        for each in others.values():
            each["progress"] = 10.0 + number
        running.look(**{name: {"progress": 7.0, "running": 3.0}}, **others)


def test_suspicion_of_the_picker_needs_no_sample() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    running.look(a={}, b={}, c={})
    running.loop.suspect({NAME: frozenset({"a"})})
    running.look(seconds=0.1)
    assert running.sent("a") == 0.05
    assert "probably stalled" in running.loop.decisions(NAME)[0].reasons[0]
    running.loop.suspect({})
    running.look(seconds=0.1)
    assert running.sent("a") == 1.0


def test_status_has_the_reason_for_each_floor_weight() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    running.look(a={}, b={}, c={})
    running.loop.suspect({NAME: frozenset({"a"})})
    for _ in range(3):
        running.look(a={}, b={}, c={"temperature": 99.0})
        running.loop.suspect({NAME: frozenset({"a"})})
    state = SimpleNamespace(live=SimpleNamespace(served=None), loop=running.loop)
    (row,) = decision_views.control(cast(ServedState, state))
    assert {name: len(reasons) for name, reasons in row.floor.items()} == {"a": 1, "c": 1}
    assert ("probably stalled" in row.floor["a"][0], row.floor["c"]) == (True, ("temperature above the limit",))


def test_suspicion_ends_when_the_report_is_old() -> None:
    """The picker hangs or has ended, so it cannot report the engine's first progress."""
    running = _Running(_pool_of("a", "b", "c"))
    running.look(a={}, b={}, c={})
    running.loop.suspect({NAME: frozenset({"a"})})
    running.look(a={}, b={}, c={})
    assert running.sent("a") == 0.05
    running.look(a={}, b={}, c={})
    assert running.sent("a") == 1.0


def test_running_loop_decides_on_a_suspicion_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_loop, "_TICK", 3600.0)

    async def play() -> None:
        clock = asyncio.get_running_loop().time
        running = _Running(_pool_of("a", "b"), clock=clock)
        for name in "ab":
            running.loop.report(_report(name, clock()))
        running.loop.decide()
        work = asyncio.create_task(running.loop.run())
        await asyncio.sleep(0)  # the loop waits for a report
        running.loop.suspect({NAME: frozenset({"a"})})
        async with asyncio.timeout(30):
            while running.sent("a") == 1.0:
                await asyncio.sleep(0.02)
        work.cancel()

    asyncio.run(play())


def test_stalled_replica_is_ejected_and_can_be_readmitted() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    _stalled(running, "a", 6)
    assert set(running.loop.output.ejections) == {NAME}
    assert "stalled" in running.loop.output.ejections[NAME]["a"][0]
    assert running.loop.output.out == {NAME: frozenset({"a"})}
    running.loop.readmit(NAME, "a")
    assert running.loop.output.ejections == {}


def test_ejection_ends_with_another_address() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    _stalled(running, "a", 6)
    elsewhere = (replace(replica("a"), address=Address("another.internal", 8000)), replica("b"), replica("c"))
    running.use_pools(pool(elsewhere, telemetry=_TELEMETRY))
    assert running.loop.output.ejections == {}
    asyncio.run(running.audit.save())
    assert running.records.rows[-1] == ("lbctl", "readmit", f"{NAME}/a", "")


def test_failed_scrape_is_not_an_observation() -> None:
    at = 1000.0
    fine = _report("a", at)
    failed = replace(fine, at=at + 5, sources=(SourceState("vllm", "http://x", at + 5, at, "timeout", "late"),))
    never = replace(fine, sources=(SourceState("vllm", "http://x", at + 5, None, "timeout", "late"),))
    assert observation_of(fine) is not None
    observation = observation_of(failed)
    assert observation is not None
    assert observation.at == at
    assert observation_of(never) is None


def test_pool_without_telemetry_leaves_nothing_behind() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    for _ in range(6):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.loop.output.weights
    running.use_pools(pool((replica("a"), replica("b"), replica("c")), telemetry=None))
    assert running.loop.output == LoopOutput()
    assert running.loop.reports == {}


def test_frozen_pool_keeps_its_weights() -> None:
    running = _Running(_pool_of("a", "b", "c"))
    running.loop.freeze({NAME: "a trial"})
    for _ in range(6):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.sent("a") == 1.0
    assert running.loop.decisions(NAME)[0].mode_reason == "a trial"
    running.loop.freeze({})
    for _ in range(4):
        running.look(a={"speed": 0.5}, b={}, c={})
    assert running.sent("a") < 0.6


def test_decisions_survive_a_restart() -> None:
    kept = LoopOutput(
        {NAME: {"a": Weight(0.5, 1.0, 0.5), "b": from_capacity(1.0), "c": from_capacity(1.0)}},
        {NAME: {"c": ("XID 79",)}},
    )
    running = _Running(_pool_of("a", "b", "c"), kept=kept)
    assert running.loop.output.weights[NAME]["a"] == Weight(0.5, 1.0, 0.5)
    assert running.loop.output.ejections == {NAME: {"c": ("XID 79",)}}
    running.look(a={"progress": 1.0}, b={"progress": 1.0}, c={"progress": 1.0})
    running.look(a={"progress": 2.0}, b={"progress": 2.0}, c={"progress": 1.0})
    for number in range(3):
        running.look(**{name: {"progress": 3.0 + number} for name in "abc"})
    assert running.loop.output.ejections, "its ejection time restarts with the process"
    running.look(30.0, **{name: {"progress": 6.0} for name in "abc"})
    assert running.loop.output.ejections == {}, "on trial at the floor"
    assert running.sent("c") == 0.05


def test_sleep_survives_a_restart_until_samples_are_due() -> None:
    kept = LoopOutput(asleep={NAME: frozenset({"c"})})
    running = _Running(_pool_of("a", "b", "c"), kept=kept)
    assert running.loop.output == kept
    running.look(a={"awake": 1.0}, b={"awake": 1.0})
    assert running.loop.output == kept
    running.look(30.0, a={"awake": 1.0}, b={"awake": 1.0})
    assert running.loop.output == LoopOutput()


def test_accepted_row_remap_survives_a_restart() -> None:
    first, failed = _Running(_pool_of("a", "b", "c")), {"row_remap_failure": 1.0}
    first.look(a={}, b={}, c=failed)
    assert first.loop.output.ejections
    first.loop.readmit(NAME, "c")
    assert first.loop.output.ejections == {}
    second = _Running(_pool_of("a", "b", "c"), kept=first.loop.output)
    second.look(a={}, b={}, c=failed)
    assert second.loop.output.ejections == {}
    second.look(a={}, b={}, c={"row_remap_failure": 0.0})
    assert second.loop.output.accepted_remaps == {}
    second.look(a={}, b={}, c=failed)
    assert second.loop.output.ejections, "another failure"


def test_failed_row_remap_ejects_after_a_restart() -> None:
    first = _Running(_pool_of("a", "b", "c"))
    first.look(a={}, b={}, c={"row_remap_failure": 1.0})
    second = _Running(_pool_of("a", "b", "c"), kept=first.loop.output)
    for _ in range(100):
        second.look(a={}, b={}, c={"progress": 1.0})
    assert second.loop.output.ejections == first.loop.output.ejections, "the value is unknown"


# ── Saved state ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def state(tmp_path: Path) -> Iterator[OpenState]:
    opened = led(tmp_path / "state")
    yield opened
    opened.close()


def test_saved_weights_expire_but_ejections_do_not(state: OpenState) -> None:
    asleep, accepted = {"p": frozenset({"c"})}, {"p": frozenset({"d"})}
    live = LoopOutput({"p": {"a": Weight(0.5, 0.8, 0.7)}}, {"p": {"b": ("stalled",)}}, asleep, accepted)
    assert asyncio.run(saved_loop_output(state.state, 1000.0)) == LoopOutput()
    state.save_loop_output(live, 1000.0)
    assert asyncio.run(saved_loop_output(state.state, 1050.0)) == live
    assert asyncio.run(saved_loop_output(state.state, 2000.0)) == LoopOutput({}, live.ejections, asleep, accepted)


def test_overrides_are_restored(state: OpenState) -> None:
    saved = (Override("drain", "p", "a", None, "", 5.0, 10.0), Override("weight", "p", "b", 2.5, "why", 6.0))
    state.save_overrides(saved)
    assert state.overrides() == saved
    state.save_overrides(())
    assert state.overrides() == ()


# ── Overrides ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_override_replaces_the_previous_one_and_expires() -> None:
    first = Override("weight", "p", "a", 2.0, until=10.0)
    held = overrides.put(overrides.put((), first), replace(first, value=3.0, until=20.0))
    assert [item.value for item in held] == [3.0]
    assert overrides.current(held, 19.0) == held
    assert overrides.current(held, 20.0) == ()
    assert overrides.removed(held, ("weight", "p", "a")) == ()


def test_weight_override_has_precedence_over_decided_weight() -> None:
    held = (Override("drain", "p", "a"), Override("freeze", "p", reason="x"), Override("weight", "p", "b", 9.0))
    decided = {"p": {"a": Weight(0.5, 1.0, 0.5), "b": Weight(1.0, 2.0, 0.5)}}
    assert overrides.apply_weights(held, decided) == {"p": {"a": Weight(0.5, 1.0, 0.5), "b": from_capacity(9.0)}}
    assert overrides.drained(held) == {"p": frozenset({"a"})}
    assert overrides.frozen(held) == {"p": "x"}
    fleet = Topology((), (), (replace(pool((replica("b"),)), name="p"),))
    assert [item.kind for item in overrides.within(held, fleet)] == ["freeze", "weight"]


# ── Health statuses in Envoy ─────────────────────────────────────────────────────────────────────────────────────────


def test_ejected_replica_is_unhealthy_and_drained_is_draining() -> None:
    upstream = pool((Replica("a", Address("10.0.0.1", 1)), Replica("b", Address("10.0.0.2", 1))))
    layout = EndpointLayout(
        "p", upstream, frozenset({"a", "b"}), Proxy("", "envoy", ()), Placement(), as_written, frozenset({"b"})
    )
    statuses = [item.health_status for group in layout.unweighed.endpoints for item in group.lb_endpoints]
    assert statuses == [health_check_pb2.DRAINING, health_check_pb2.UNHEALTHY]

"""What keeps requests away from a replica anywhere in lbctl is in the picker's table, and who is fit has its load."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override
from lbctl.control.slow_start import Factors
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.weight import Weight
from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.health.thresholds import CheckState
from lbctl.serve.picker import tables
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.tables import FleetMeasurements, NewSamples
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.serve.traffic.ledger import ReplicaCondition, ReplicaKey, TrafficLedger
from lbctl.signals.merge import Signal, Signals
from tests.support.fleet import compiled

FLEET = """\
version: 1
listeners: {{main: {{bind: "127.0.0.1:80"}}}}
routes: {{all: {{match: {{path_prefix: /}}, pool: chat}}}}
pools:
  chat:
    model: {{name: llama, adapters: [sql, chat-de]}}
    balance: {{algorithm: pick}}
    circuit_breaker: {{per_replica: {{max_requests: 7}}}}
    telemetry: {{interval: 2s, sources: [{{kind: vllm, url: "http://{{host}}:{{port}}/metrics"}}]}}
    replicas:
      - {{name: a, address: "10.0.0.1:80", weight: 2, region: eu, zone: eu-1}}
      - {{name: b, address: "chat.example:80", weight: 1, drain: {drain}}}
      - {{name: c, address: "[2001:db8::3]:80", weight: 1, priority: 1}}
  other: {{replicas: [{{address: "10.0.0.9:80"}}]}}
"""
A, B, C = (ReplicaKey("chat", name) for name in "abc")


def _served(
    output: LoopOutput = LoopOutput(),  # noqa: B008 -- a frozen value
    *overrides: Override,
    drain: bool = False,
) -> PublishedFleet:
    topology = compiled(FLEET.format(drain=str(drain).lower())).topology
    fleet = Snapshot(topology, addresses={"chat.example": ("10.0.0.2", "10.0.0.20")})
    composed = compose(fleet, output, overrides, {}, 1_000.0)
    return cast(PublishedFleet, SimpleNamespace(composed=composed))


def _table(
    served: PublishedFleet,
    measured: FleetMeasurements = FleetMeasurements(50.0),  # noqa: B008 -- a frozen value
) -> PoolTable:
    (pool,) = tables.picked_pools(served)
    return tables.table(served, pool, measured)


def _candidates(table: PoolTable) -> dict[str, Candidate]:
    return {item.name: item for item in table.candidates}


def _unfit(table: PoolTable) -> dict[str, str]:
    return {item.name: item.reason for item in table.candidates if not item.fit}


def _report(at: float, **values: float) -> ScrapeReport:
    signals = Signals({name: Signal(value, at, 0) for name, value in values.items()})
    return ScrapeReport("chat", "a", at, 0, signals, (), first_tokens=12.0)


def test_a_fleet_as_its_files_say_has_every_replica_fit_with_address_capacity_and_place() -> None:
    found = _candidates(_table(_served()))
    assert not _unfit(_table(_served()))
    assert {name: item.address for name, item in found.items()} == {
        "a": "10.0.0.1:80", "b": "10.0.0.2:80", "c": "[2001:db8::3]:80",
    }  # fmt: skip
    a = found["a"]
    assert (a.weight, a.region, a.zone, a.limit) == (2.0, "eu", "eu-1", 7)
    assert found["c"].priority == 1


def test_the_names_of_the_model_and_of_its_adapters_are_those_of_the_files() -> None:
    found = _table(_served())
    assert (found.model, found.adapters) == ("llama", {"sql", "chat-de"})


def test_drained_by_the_files_by_an_operator_and_ejected_by_deep_health() -> None:
    assert _unfit(_table(_served(drain=True))) == {"b": "drained by the files"}
    drained = Override("drain", "chat", "a", reason="new driver")
    assert _unfit(_table(_served(LoopOutput(), drained))) == {"a": "drained by an operator: new driver"}
    ejected = LoopOutput(ejections={"chat": {"c": ("XID 79",)}})
    assert _unfit(_table(_served(ejected))) == {"c": "XID 79"}


def test_live_weights_are_those_that_proxies_get() -> None:
    output = LoopOutput(weights={"chat": {"a": Weight(0.5, 2.0, 0.25)}})
    assert _candidates(_table(_served(output)))["a"].weight == 0.5


def test_failing_the_checks_of_lbctl_or_of_most_proxies() -> None:
    checks = {A: CheckState(out=True, since=0.0, reason="refused")}
    assert _unfit(_table(_served(), FleetMeasurements(50.0, checks=checks))) == {
        "a": "the active check of lbctl fails: refused"
    }
    up, down, out = ReplicaCondition("up"), ReplicaCondition("down", "no answer"), ReplicaCondition("ejected", "5xx")
    for conditions, fit in (
        ((down,), False),
        ((up, out), False),
        ((up, up, out), True),
        ((up, up, up), True),
    ):
        ledger = TrafficLedger()
        for number, condition in enumerate(conditions):
            ledger.set_conditions(f"edge-{number}", {A: up, B: condition}, 50.0)
        measured = FleetMeasurements(
            50.0,
            conditions=lambda key, ledger=ledger: ledger.conditions(key, 50.0),
            judged_by=lambda key, ledger=ledger: ledger.judged_by(key, 50.0),
        )
        assert ("b" not in _unfit(_table(_served(), measured))) is fit


def test_signals_are_known_while_they_are_fresh() -> None:
    reports = {A: _report(48.0, queue=3.0, running=5.0, kv_cache=0.5)}
    fresh = _candidates(_table(_served(), FleetMeasurements(50.0, reports)))["a"]
    assert (fresh.queue, fresh.kv) == (3.0, 0.5)
    stale = _candidates(_table(_served(), FleetMeasurements(60.0, reports)))["a"]
    assert (stale.queue, stale.kv) == (None, None)


class _Following:
    """A feed that follows fleets and measurements."""

    def __init__(self) -> None:
        self.now = 0.0
        self.measured = FleetMeasurements(0.0)
        self.feed = Feed(lambda: replace(self.measured, now=self.now), clock=lambda: self.now)

    def after(self, now: float, served: PublishedFleet, **measured: Any) -> Factors:
        """Return the ramps at a time, with this fleet and these measurements."""
        self.now, self.measured = now, FleetMeasurements(now, **measured)
        self.feed.follow(served)
        self.feed.update()
        return self.feed.ramps()


DRAIN = Override("drain", "chat", "b")
EJECTED = LoopOutput(ejections={"chat": {"b": ("XID 79",)}})
DOWN = {B: CheckState(out=True, since=0.0, reason="refused")}


def test_a_replica_that_was_only_drained_has_its_whole_weight_at_once() -> None:
    assert _unfit(_table(_served(EJECTED))) == {"b": "XID 79"}
    for drained in (_served(drain=True), _served(LoopOutput(), DRAIN), _served(EJECTED)):
        feed = _Following()
        assert feed.after(0.0, _served()) == {}
        assert feed.after(50.0, drained) == {}
        assert feed.after(60.0, _served()) == {}
    from_the_start = _Following()
    from_the_start.after(0.0, _served(drain=True))
    assert from_the_start.after(60.0, _served()) == {}


def test_a_proxy_that_has_not_seen_the_end_of_a_drain_begins_no_slow_start() -> None:
    ledger, feed = TrafficLedger(), _Following()
    ledger.set_conditions("edge", {B: ReplicaCondition("draining", "MAINT")}, 50.0)
    late: dict[str, Any] = {
        "conditions": lambda key: ledger.conditions(key, 50.0),
        "judged_by": lambda key: ledger.judged_by(key, 50.0),
    }
    feed.after(0.0, _served())
    assert feed.after(50.0, _served(LoopOutput(), DRAIN), **late) == {}
    assert feed.after(50.5, _served(), **late) == {}
    assert feed.after(55.0, _served()) == {}


def test_a_replica_that_was_down_ramps_also_if_it_was_drained_meanwhile() -> None:
    feed = _Following()
    feed.after(0.0, _served())
    feed.after(50.0, _served(), checks=DOWN)
    assert feed.after(60.0, _served()) == {"chat": {"b": 0.1}}
    assert feed.after(84.0, _served()) == {"chat": {"b": 0.4}}
    assert feed.after(120.0, _served()) == {}
    feed.after(130.0, _served(LoopOutput(), DRAIN))
    feed.after(131.0, _served(LoopOutput(), DRAIN), checks=DOWN)
    assert feed.after(140.0, _served(LoopOutput(), DRAIN)) == {}
    assert feed.after(200.0, _served()) == {"chat": {"b": 0.1}}, "it begins with its first requests"


def test_a_replica_that_is_removed_after_its_drain_deadline_comes_back_as_a_new_one() -> None:
    feed = _Following()
    feed.after(0.0, _served())
    topology = compiled(FLEET.format(drain="false")).topology
    late = compose(Snapshot(topology), LoopOutput(), (DRAIN,), {("chat", "b"): 1.0}, 1_000.0)
    feed.after(50.0, cast(PublishedFleet, SimpleNamespace(composed=late)))
    assert [item.name for item in feed.feed.tables["chat"].candidates] == ["a", "c"]
    assert feed.after(60.0, _served()) == {"chat": {"b": 0.1}}


def test_a_measurement_of_an_engine_is_sent_once_with_its_age() -> None:
    served, samples = _served(), NewSamples()
    pools = tables.picked_pools(served)
    measured = FleetMeasurements(50.0, {A: _report(48.0, running=5.0)})
    (sample,) = samples.of(pools, measured)
    assert (sample.replica, sample.running, sample.queue, sample.first_tokens) == ("a", 5.0, None, 12.0)
    assert sample.age == 2.0
    assert samples.of(pools, measured) == []
    assert len(samples.of(pools, FleetMeasurements(51.0, {A: _report(50.0, running=5.0)}))) == 1


def test_a_failed_scrape_and_one_of_another_source_are_no_new_measurement() -> None:
    """Their reports repeat what the engine said before."""
    served, samples = _served(), NewSamples()
    pools = tables.picked_pools(served)
    before = _report(48.0, running=5.0, queue=0.0)
    assert len(samples.of(pools, FleetMeasurements(50.0, {A: before}))) == 1
    assert samples.of(pools, FleetMeasurements(54.0, {A: replace(before, at=53.0)})) == []
    counts_alone = replace(_report(55.0), first_tokens=13.0)
    assert [item.first_tokens for item in samples.of(pools, FleetMeasurements(56.0, {A: counts_alone}))] == [13.0]
    assert samples.of(pools, FleetMeasurements(58.0, {A: replace(counts_alone, at=57.0)})) == []


def test_a_restart_is_sent_once_also_where_another_report_came_before_the_look() -> None:
    served, samples = _served(), NewSamples()
    pools = tables.picked_pools(served)
    reports = {A: _report(48.0, running=5.0)}
    assert [item.restarted for item in samples.of(pools, FleetMeasurements(50.0, reports))] == [False]
    (restart,) = samples.of(pools, FleetMeasurements(51.0, reports, restarts={A: 1}))
    assert (restart.restarted, restart.running, restart.first_tokens) == (True, None, None), "counted before"
    assert samples.of(pools, FleetMeasurements(52.0, reports, restarts={A: 1})) == []


@pytest.mark.parametrize("at", [1_000.0])
def test_a_removed_replica_is_in_no_table(at: float) -> None:
    served = _served(drain=True)
    composed = compose(served.composed.whole, LoopOutput(), (), {("chat", "b"): at - 100_000.0}, at)
    removed = cast(PublishedFleet, SimpleNamespace(composed=composed))
    assert _candidates(_table(removed)).keys() == {"a", "c"}

"""The picker's tables: fitness, weights and load of replicas, and slow start."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbctl.control.check_thresholds import CheckState
from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override
from lbctl.control.replica_state import ReplicaCondition
from lbctl.control.slow_start import Factors
from lbctl.ir.pools import DeepCheck
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight
from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker import tables
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.tables import FleetMeasurements, NewSamples
from lbctl.serve.telemetry.reports import ScrapeReport, SourceState
from lbctl.serve.traffic.ledger import ReplicaKey, TrafficLedger
from lbctl.signals.cached import CachedTokens
from lbctl.signals.merge import Signal, Signals
from tests.support.fleet import compiled
from tests.support.fleets import fleet_text, pool, replica
from tests.support.signals import fixture, reading

A, B, C = (ReplicaKey("chat", name) for name in "abc")


def _topology(*, drain: bool = False, fail_open: bool = False) -> Topology:
    """Return a fleet with the picked pool chat. `drain` belongs to its replica b, `fail_open` to its health checks."""
    chat = pool(
        replica("a", "10.0.0.1:80", weight=2, region="eu", zone="eu-1"),
        replica("b", "chat.example:80", weight=1, drain=drain),
        replica("c", "[2001:db8::3]:80", weight=1, priority=1),
        model={"name": "llama", "adapters": ["sql", "chat-de"]},
        balance={"algorithm": "pick"},
        circuit_breaker={"per_replica": {"max_requests": 7}},
        health={"active": {"http": {}}, "fail_open": fail_open},
        telemetry={"interval": "2s", "sources": [{"kind": "vllm", "url": "http://{host}:{port}/metrics"}]},
    )
    routes = {"chat": {"match": {"path_prefix": "/chat"}, "pool": "chat"}}
    return compiled(fleet_text(routes=routes, pools={"chat": chat})).topology


def _published(
    output: LoopOutput = LoopOutput(),  # noqa: B008 -- a frozen value
    *overrides: Override,
    drain: bool = False,
    fail_open: bool = False,
) -> PublishedFleet:
    fleet = Snapshot(_topology(drain=drain, fail_open=fail_open), addresses={"chat.example": ("10.0.0.2", "10.0.0.20")})
    composed = compose(fleet, output, overrides, {}, 1_000.0)
    return cast(PublishedFleet, SimpleNamespace(composed=composed))


def _table(
    served: PublishedFleet,
    measured: FleetMeasurements = FleetMeasurements(50.0),  # noqa: B008 -- a frozen value
) -> PoolTable:
    (picked,) = tables.picked_pools(served)
    return tables.table(served, picked, measured)


def _candidates(table: PoolTable) -> dict[str, Candidate]:
    return {item.name: item for item in table.candidates}


def _unfit(table: PoolTable) -> dict[str, str]:
    return {item.name: item.reason for item in table.candidates if not item.fit}


def _report(at: float, kind: str = "vllm", **values: float) -> ScrapeReport:
    signals = Signals({name: Signal(value, at, 0) for name, value in values.items()})
    sources = (SourceState(kind, "http://x/metrics", at, at),)
    return ScrapeReport("chat", "a", at, 0, signals, sources, first_tokens=12.0, prompt_tokens=900.0)


def test_table_has_address_weight_and_place_of_each_replica() -> None:
    candidates = _candidates(_table(_published()))
    assert not _unfit(_table(_published()))
    assert {name: item.address for name, item in candidates.items()} == {
        "a": "10.0.0.1:80", "b": "10.0.0.2:80", "c": "[2001:db8::3]:80",
    }  # fmt: skip
    a = candidates["a"]
    assert (a.weight, a.region, a.zone, a.limit) == (2.0, "eu", "eu-1", 7)
    assert candidates["c"].priority == 1


@pytest.mark.parametrize(("milliseconds", "seconds"), [(15_000, 15.0), (120_000, 120.0), (None, None)])
def test_table_has_the_time_until_a_stall(milliseconds: int | None, seconds: float | None) -> None:
    chat = next(item for item in _topology().pools if item.name == "chat")
    assert PoolTable.of(replace(chat, deep=DeepCheck(stalled_after=milliseconds)), ()).stalled_after == seconds


def test_table_has_the_names_of_model_and_adapters() -> None:
    table = _table(_published())
    assert (table.model, table.adapters) == ("llama", {"sql", "chat-de"})


def test_drained_and_ejected_replicas_are_unfit() -> None:
    assert _unfit(_table(_published(drain=True))) == {"b": "drained by the files"}
    drained = Override("drain", "chat", "a", reason="new driver")
    assert _unfit(_table(_published(LoopOutput(), drained))) == {"a": "drained by an operator: new driver"}
    asleep = LoopOutput(asleep={"chat": frozenset({"b"})})
    assert _unfit(_table(_published(asleep))) == {"b": "its engine is asleep"}
    ejected = LoopOutput(ejections={"chat": {"c": ("XID 79",)}})
    assert _unfit(_table(_published(ejected))) == {"c": "XID 79"}


def test_table_has_the_published_weights() -> None:
    output = LoopOutput(weights={"chat": {"a": Weight(0.5, 2.0, 0.25)}})
    assert _candidates(_table(_published(output)))["a"].weight == 0.5


def test_checks_that_all_fail_are_ignored_with_fail_open() -> None:
    served = _published(drain=True, fail_open=True)
    failed = CheckState(out=True, since=0.0, reason="refused")
    assert set(_unfit(_table(served, FleetMeasurements(50.0, checks={A: failed})))) == {"a", "b"}
    assert set(_unfit(_table(served, FleetMeasurements(50.0, checks={A: failed, C: failed})))) == {"b"}


def test_replicas_failing_checks_are_unfit() -> None:
    checks = {A: CheckState(out=True, since=0.0, reason="refused")}
    assert _unfit(_table(_published(), FleetMeasurements(50.0, checks=checks))) == {
        "a": "lbctl's active check is failing: refused"
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
        assert ("b" not in _unfit(_table(_published(), measured))) is fit


def test_stale_signals_are_unknown() -> None:
    reports = {A: _report(48.0, queue=3.0, running=5.0, kv_cache=0.5)}
    fresh = _candidates(_table(_published(), FleetMeasurements(50.0, reports)))["a"]
    assert (fresh.queue, fresh.kv) == (3.0, 0.5)
    stale = _candidates(_table(_published(), FleetMeasurements(60.0, reports)))["a"]
    assert (stale.queue, stale.kv) == (None, None)


class _ReadFeed:
    """A feed that follows fleets and measurements."""

    def __init__(self) -> None:
        self.now = 0.0
        self.measured = FleetMeasurements(0.0)
        self.feed = Feed(lambda: replace(self.measured, now=self.now), clock=lambda: self.now)

    def after(self, now: float, served: PublishedFleet, **measured: Any) -> Factors:
        """Return the ramps at a time, with this fleet and these measurements."""
        self.now, self.measured = now, FleetMeasurements(now, **measured)
        self.feed.use_fleet(served)
        self.feed.update()
        return self.feed.ramps()


DRAIN = Override("drain", "chat", "b")
EJECTED = LoopOutput(ejections={"chat": {"b": ("XID 79",)}})
DOWN = {B: CheckState(out=True, since=0.0, reason="refused")}


def test_undrained_replica_has_its_full_weight_at_once() -> None:
    assert _unfit(_table(_published(EJECTED))) == {"b": "XID 79"}
    for drained in (_published(drain=True), _published(LoopOutput(), DRAIN), _published(EJECTED)):
        feed = _ReadFeed()
        assert feed.after(0.0, _published()) == {}
        assert feed.after(50.0, drained) == {}
        assert feed.after(60.0, _published()) == {}
    initially_drained = _ReadFeed()
    initially_drained.after(0.0, _published(drain=True))
    assert initially_drained.after(60.0, _published()) == {}


def test_late_proxy_report_after_a_drain_starts_no_slow_start() -> None:
    ledger, feed = TrafficLedger(), _ReadFeed()
    ledger.set_conditions("edge", {B: ReplicaCondition("draining", "MAINT")}, 50.0)
    late: dict[str, Any] = {
        "conditions": lambda key: ledger.conditions(key, 50.0),
        "judged_by": lambda key: ledger.judged_by(key, 50.0),
    }
    feed.after(0.0, _published())
    assert feed.after(50.0, _published(LoopOutput(), DRAIN), **late) == {}
    assert feed.after(50.5, _published(), **late) == {}
    assert feed.after(55.0, _published()) == {}


def test_replica_that_was_down_ramps_even_if_drained() -> None:
    feed = _ReadFeed()
    feed.after(0.0, _published())
    feed.after(50.0, _published(), checks=DOWN)
    assert feed.after(60.0, _published()) == {"chat": {"b": 0.1}}
    assert feed.after(84.0, _published()) == {"chat": {"b": 0.4}}
    assert feed.after(120.0, _published()) == {}
    feed.after(130.0, _published(LoopOutput(), DRAIN))
    feed.after(131.0, _published(LoopOutput(), DRAIN), checks=DOWN)
    assert feed.after(140.0, _published(LoopOutput(), DRAIN)) == {}
    assert feed.after(200.0, _published()) == {"chat": {"b": 0.1}}, "it begins with its first requests"


def test_replica_does_not_ramp_while_half_of_the_pool_is_drained() -> None:
    feed = _ReadFeed()
    feed.after(0.0, _published())
    feed.after(50.0, _published(), checks=DOWN)
    assert feed.after(60.0, _published(LoopOutput(), Override("drain", "chat", "a"))) == {}
    assert feed.after(61.0, _published()) == {"chat": {"b": 0.1}}


def test_replica_removed_after_its_drain_deadline_ramps_again() -> None:
    feed = _ReadFeed()
    feed.after(0.0, _published())
    late = compose(Snapshot(_topology()), LoopOutput(), (DRAIN,), {("chat", "b"): 1.0}, 1_000.0)
    feed.after(50.0, cast(PublishedFleet, SimpleNamespace(composed=late)))
    assert [item.name for item in feed.feed.tables["chat"].candidates] == ["a", "c"]
    assert feed.after(60.0, _published()) == {"chat": {"b": 0.1}}


def test_engine_sample_is_sent_once_with_its_age() -> None:
    served, samples = _published(), NewSamples()
    pools = tables.picked_pools(served)
    measured = FleetMeasurements(50.0, {A: _report(48.0, running=5.0)})
    (sample,) = samples.of(pools, measured)
    assert (sample.replica, sample.running, sample.queue, sample.first_tokens) == ("a", 5.0, None, 12.0)
    assert (sample.age, sample.prompt_tokens) == (2.0, 900.0)
    assert samples.of(pools, measured) == []
    assert len(samples.of(pools, FleetMeasurements(51.0, {A: _report(50.0, running=5.0)}))) == 1


def test_sample_counts_deferred_requests_as_waiting() -> None:
    """The picker compares the sum with the requests that it has sent; a difference would end some of them."""
    reports = {A: _report(48.0, running=5.0, queue=0.0, deferred=3.0)}
    measured = FleetMeasurements(50.0, reports)
    (sample,) = NewSamples().of(tables.picked_pools(_published()), measured)
    assert (sample.running, sample.queue, sample.deferred) == (5.0, 3.0, 3.0)
    assert _candidates(_table(_published(), measured))["a"].queue == 0.0


@pytest.mark.parametrize(("kind", "requests"), [("dynamo", 6.0), ("smg", 10.0), ("llm_d", 18.0)])
def test_waiting_requests_of_a_router_count_once(kind: str, requests: float) -> None:
    quantities = reading(kind, fixture(kind)).quantities
    running, queue = quantities["running"], quantities["queue"]
    assert queue > 0
    measured = FleetMeasurements(50.0, {A: _report(48.0, kind, running=running, queue=queue)})
    (sample,) = NewSamples().of(tables.picked_pools(_published()), measured)
    assert (sample.running, sample.queue) == (requests, 0.0)


def test_requests_of_a_custom_source_are_added() -> None:
    measured = FleetMeasurements(50.0, {A: _report(48.0, "custom", running=5.0, queue=2.0)})
    (sample,) = NewSamples().of(tables.picked_pools(_published()), measured)
    assert (sample.running, sample.queue) == (5.0, 2.0)


@pytest.mark.parametrize("by_steps", [True, False])
def test_sample_has_progress_only_in_steps(*, by_steps: bool) -> None:
    report = _report(48.0, running=5.0, progress=7.0, ttft=0.5)
    report = replace(report, signals=replace(report.signals, by_steps=by_steps))
    (sample,) = NewSamples().of(tables.picked_pools(_published()), FleetMeasurements(50.0, {A: report}))
    assert (sample.progress, sample.ttft) == (7.0 if by_steps else None, 0.5)


def test_sample_has_the_duration_of_the_fetch_of_its_progress() -> None:
    report = _report(48.0, running=5.0, progress=7.0)
    report = replace(report, sources=(replace(report.sources[0], seconds=1.75),))
    (sample,) = NewSamples().of(tables.picked_pools(_published()), FleetMeasurements(50.0, {A: report}))
    assert (sample.age, sample.duration) == (2.0, 1.75)


def test_sample_has_no_older_progress() -> None:
    report = _report(48.0, running=5.0)
    values = {**report.signals.values, "progress": Signal(7.0, 47.0, 0), "ttft": Signal(0.5, 47.0, 0)}
    report = replace(report, signals=Signals(values, by_steps=True))
    (sample,) = NewSamples().of(tables.picked_pools(_published()), FleetMeasurements(50.0, {A: report}))
    assert (sample.progress, sample.ttft) == (None, None)


def test_repeated_values_are_not_a_new_sample() -> None:
    """A failed scrape and a scrape of another source repeat the values of the engine."""
    served, samples = _published(), NewSamples()
    pools = tables.picked_pools(served)
    before = _report(48.0, running=5.0, queue=0.0)
    assert len(samples.of(pools, FleetMeasurements(50.0, {A: before}))) == 1
    assert samples.of(pools, FleetMeasurements(54.0, {A: replace(before, at=53.0)})) == []
    counts_alone = replace(_report(55.0), first_tokens=13.0)
    assert [item.first_tokens for item in samples.of(pools, FleetMeasurements(56.0, {A: counts_alone}))] == [13.0]
    assert samples.of(pools, FleetMeasurements(58.0, {A: replace(counts_alone, at=57.0)})) == []


def test_restart_of_counters_is_sent_once() -> None:
    served, samples = _published(), NewSamples()
    pools = tables.picked_pools(served)
    reports = {A: _report(48.0, running=5.0)}
    assert [item.restarted for item in samples.of(pools, FleetMeasurements(50.0, reports))] == [False]
    (restart,) = samples.of(pools, FleetMeasurements(51.0, reports, restarts={A: 1}))
    assert (restart.restarted, restart.running, restart.first_tokens) == (True, None, None), "counted before"
    assert samples.of(pools, FleetMeasurements(52.0, reports, restarts={A: 1})) == []


@pytest.mark.parametrize("at", [1_000.0])
def test_removed_replica_is_in_no_table(at: float) -> None:
    served = _published(drain=True)
    composed = compose(served.composed.whole, LoopOutput(), (), {("chat", "b"): at - 100_000.0}, at)
    removed = cast(PublishedFleet, SimpleNamespace(composed=composed))
    assert _candidates(_table(removed)).keys() == {"a", "c"}


def test_cached_tokens_are_unknown_without_a_fresh_report() -> None:
    counts = CachedTokens(70.0, {})
    measured = {A: replace(_report(50.0), cached=counts), B: replace(_report(10.0), cached=counts)}
    found = tables.cached_tokens(_published(), FleetMeasurements(51.0, measured))
    assert found == {A: counts, B: None, C: None}

"""`lbctl explain weight` and `/api/v1/decisions`: the factors of a weight, and the weight of each kind of proxy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from msgspec.structs import replace

from lbctl.api import schema
from lbctl.cli.explain import _lines
from lbctl.control.compose import ForProxy, compose, for_proxy
from lbctl.control.decisions import decisions
from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Override
from lbctl.control.slow_start import Ramps
from lbctl.ir.pools import MetricsSource, Pool, SlowStart, Telemetry
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, from_capacity
from lbctl.serve.api import decision_rows, pool_rows
from lbctl.serve.api.decision_rows import PublishedWeight as Published
from lbctl.serve.telemetry.reports import SourceState
from tests.support.api import ACKNOWLEDGED, DRIVEN, ENVOY
from tests.support.control import NAME, Talk, pool, replica


def published(
    of_pool: Pool, *weights: Weight, drained: str = "", kinds: tuple[str, ...] = ()
) -> Mapping[str, Published]:
    """Return the decided weights as one proxy of each of these kinds has them."""
    decided = {item.name: weight for item, weight in zip(of_pool.replicas, weights, strict=True)}
    overrides = (Override("drain", NAME, drained),) if drained else ()
    output = LoopOutput({of_pool.name: decided})
    composed = compose(Snapshot(Topology((), (), (of_pool,))), output, overrides, {}, 0.0)
    return decision_rows.published_weights(of_pool, composed, [Proxy(kind, kind, ()) for kind in kinds or KINDS], {})


SLOW = Weight(rate=0.25, room=1.0, speed=0.25)
KINDS = ("envoy", "haproxy", "nginx")
WATCHED = Telemetry(sources=(MetricsSource("vllm", "http://{host}/metrics"),))


def test_each_kind_of_proxy_quantises_a_slow_weight_itself() -> None:
    weights = published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0))
    slow, peer = (weights[name].quantised for name in ("r00000", "r00001"))
    ratios = {kind: slow[kind] / peer[kind] for kind in KINDS}
    assert ratios["envoy"] < ratios["haproxy"] == ratios["nginx"]
    assert weights["r00000"].effective.share == 0.2


def test_drained_replica_has_no_quantised_weight() -> None:
    weights = published(pool(3, telemetry=WATCHED), SLOW, from_capacity(1.0), from_capacity(4.0), drained="r00002")
    others = published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0))
    assert weights["r00002"].quantised == {}
    assert [weights[name].quantised for name in others] == [item.quantised for item in others.values()]


def test_only_driven_kinds_have_quantised_weights() -> None:
    weights = published(pool(1, telemetry=WATCHED), from_capacity(1.0), kinds=("haproxy",))
    assert weights["r00000"].quantised == {"haproxy": 100}


def test_failing_sources_are_counted_by_pool() -> None:
    working, failing, pending = (
        SourceState("vllm", "u", 1.0, 1.0),
        SourceState("dcgm", "u", 1.0, reason="dns"),
        SourceState("vllm", "u"),
    )
    counts = decision_rows.sources([("b", failing), ("a", working), ("a", failing), ("b", failing), ("a", pending)])
    assert counts == schema.SourceCounts(5, 3, {"a": 1, "b": 2})


def test_composite_decision_shows_load_instead_of_speed() -> None:
    talk = Talk(pool(2, telemetry=WATCHED, weighting={"strategy": "composite"}))
    talk.look({name: {"queue": 4.0, "kv_cache": 0.5} for name in ("r00000", "r00001")})
    first = decisions(talk.state, NAME)[0]
    weight = published(talk.pool, first.weight, from_capacity(1.0))[first.replica]
    row = decision_rows.decision(first, weight, (), ACKNOWLEDGED, talk.now)
    assert row.speed is None
    assert row.load is not None
    assert row.load > 0
    lines = dict(_lines(row, (row,)))
    assert lines["load"].endswith(" per capacity")
    assert "speed" not in lines


def test_explain_shows_the_factors_of_a_weight() -> None:
    talk = Talk(pool(2, telemetry=WATCHED))
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    weight = published(talk.pool, first.weight, from_capacity(1.0))[first.replica]
    row = decision_rows.decision(first, weight, (), ACKNOWLEDGED, talk.now)
    peer = replace(row, quantised={kind: 2 * value for kind, value in weight.quantised.items()})
    lines = dict(_lines(row, (row, peer)))
    assert (row.published, row.room, row.of_peers_speed, row.held) == (0.25, 1.0, 0.25, 1.0)
    assert lines["factors"] == "room 1, 25% of its peers' speed, limited to 100%"
    numbers = ", ".join(f"{kind}: {weight.quantised[kind]} of {3 * weight.quantised[kind]}" for kind in KINDS)
    assert lines["quantised"] == f"{numbers}; each kind has its own scale"
    assert lines["decided"] == "0.25"


def test_explain_shows_end_and_reason_of_a_weight_override() -> None:
    talk = Talk(pool(2, telemetry=WATCHED))
    talk.look({"r00000": {}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    weight = published(talk.pool, from_capacity(3.0), from_capacity(1.0))[first.replica]
    overrides = (
        Override("weight", NAME, "r00000", 3.0, "too hot", since=0.0, until=60.0),
        Override("drain", NAME, "r00001", since=0.0),
    )
    row = decision_rows.decision(first, weight, overrides, ACKNOWLEDGED, talk.now)
    lines = dict(_lines(row, (row,)))
    assert lines["decided"] == "1, not published: the weight is overridden"
    assert lines["override"] == "weight 3, until 1970-01-01T00:01:00.000Z: too hot"
    assert lines["published"] == "3 by override, 75.0% of the pool's weight"


def _row(node: str, kind: str, state: str, last_good: str, *, connected: bool = True) -> schema.Proxy:
    sample = ENVOY if kind == "envoy" else DRIVEN
    return replace(sample, node=node, proxy=node, kind=kind, state=state, last_good=last_good, connected=connected)


def test_failing_proxy_counts_as_not_acknowledged() -> None:
    rows = [
        _row("edge", "envoy", "SYNCED", "v2"),
        _row("away", "envoy", "GONE", "v1", connected=False),
        _row("dead", "haproxy", "FAILING", "v2", connected=False),
        _row("mute", "haproxy", "WAITING", "v2"),
        _row("ng", "nginx", "SYNCED", "v2"),
        _row("alone", "nginx", "NOT DRIVEN", "", connected=False),
    ]
    assert decision_rows.acknowledged(rows, "v2") == schema.Acknowledged(4, 2, ("dead", "mute"))


def test_explain_notes_that_haproxy_ignores_a_small_weight() -> None:
    weights = published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0))
    assert "ignores weights" in " ".join(weights["r00000"].notes)
    assert weights["r00001"].notes == ()
    assert (
        published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0), kinds=("envoy", "nginx"))["r00000"].notes == ()
    )


# ── The same from every page ─────────────────────────────────────────────────────────────────────────────────────────


def _shares(of_pool: Pool, *overrides: Override, ejected: tuple[str, ...] = ()) -> tuple[list[float], list[float]]:
    """Return the shares that `/api/v1/pools` and `/api/v1/decisions` show."""
    output = LoopOutput({}, {NAME: dict.fromkeys(ejected, ("XID 79",))})
    composed = compose(Snapshot(Topology((), (), (of_pool,))), output, overrides, {}, 0.0)
    (row,) = pool_rows.pools(composed, pool_rows.LiveState())
    weights = decision_rows.published_weights(of_pool, composed, [], {})
    explained = [
        decision_rows.decision(item, weights[item.replica], composed.overrides, ACKNOWLEDGED, 0.0).share
        for item in decisions(Talk(of_pool).state, NAME)
    ]
    return [replica.share for replica in row.replicas], explained


def test_status_and_explain_show_the_same_share() -> None:
    three = pool(3, telemetry=WATCHED)
    drained = Override("drain", NAME, "r00002")
    assert _shares(three, drained) == ([0.5, 0.5, 0], [0.5, 0.5, 0])
    assert _shares(three, drained, ejected=("r00001",)) == ([1, 0, 0], [1, 0, 0])
    assert _shares(three, drained, ejected=("r00000", "r00001")) == ([0, 0, 0], [0, 0, 0])
    with_spare = pool((replica("a"), replica("b"), replica("spare", priority=1)), telemetry=WATCHED)
    assert _shares(with_spare) == ([0.5, 0.5, 0], [0.5, 0.5, 0])
    assert _shares(with_spare, ejected=("a", "b")) == ([0, 0, 1], [0, 0, 1])
    drained_by_the_files = pool((replica("a"), replica("b", drain=True), replica("c", capacity=3.0)), telemetry=WATCHED)
    assert _shares(drained_by_the_files) == ([0.25, 0, 0.75], [0.25, 0, 0.75])


# ── Slow start that lbctl does ───────────────────────────────────────────────────────────────────────────────────────


def _ramping_pool(*intervals: float) -> tuple[Pool, dict[str, Published], list[schema.Decision]]:
    """Return a pool whose second replica joined 40 s ago, and its weights in nginx proxies with these intervals."""
    grown = pool(2, telemetry=WATCHED, slow_start=SlowStart())
    alone = dataclasses.replace(grown, replicas=grown.replicas[:1])
    before, composed = (
        compose(Snapshot(Topology((), (), (each,))), LoopOutput(), (), {}, 0.0) for each in (alone, grown)
    )
    own: dict[str, ForProxy] = {}
    for place, interval in enumerate(intervals):
        first = for_proxy(before, {}, Ramps(), 0.0, interval)
        joined = for_proxy(composed, {}, first.ramps, 1.0, interval)
        own[f"n{place}"] = for_proxy(composed, {}, joined.ramps, 41.0, interval)
    proxies = [Proxy("edge", "envoy", ()), *(Proxy(name, "nginx", ()) for name in own)]
    weights = decision_rows.published_weights(grown, composed, proxies, own)
    rows = [
        decision_rows.decision(item, weights[item.replica], (), ACKNOWLEDGED, 0.0)
        for item in decisions(Talk(grown).state, NAME)
    ]
    return grown, dict(weights), rows


def test_explain_shows_the_ramped_weight_of_nginx() -> None:
    _, weights, rows = _ramping_pool(30.0)
    assert [weights[name].ramp for name in ("r00000", "r00001")] == [1.0, 0.5]
    assert [weights[name].quantised["nginx"] for name in ("r00000", "r00001")] == [100, 50]
    assert weights["r00000"].quantised["envoy"] == weights["r00001"].quantised["envoy"]
    lines = dict(_lines(rows[1], rows))
    assert lines["slow start"] == "nginx uses 50% of the weight so far; Envoy and HAProxy apply slow start themselves"
    assert "nginx: 50 of 150" in lines["quantised"]
    assert "slow start" not in dict(_lines(rows[0], rows))


def test_explain_shows_slow_start_progress_of_the_picker() -> None:
    item = pool(2, telemetry=WATCHED)
    composed = compose(Snapshot(Topology((), (), (item,))), LoopOutput(), (), {}, 0.0)
    weights = decision_rows.published_weights(item, composed, (), {}, picker_ramps={"r00001": 0.4})
    first, second = (
        decision_rows.decision(each, weights[each.replica], (), ACKNOWLEDGED, 0.0)
        for each in decisions(Talk(item).state, NAME)
    )
    assert dict(_lines(second, (first, second)))["slow start"] == "the picker uses 40% of the weight so far"
    assert "slow start" not in dict(_lines(first, (first, second)))


def test_two_nginx_ramping_differently_are_listed_separately() -> None:
    _, weights, rows = _ramping_pool(30.0, 45.0)
    assert weights["r00001"].quantised.keys() == {"envoy", "nginx n0", "nginx n1"}
    assert weights["r00001"].ramp == 0.1
    assert "nginx n0: 50 of 150, nginx n1: 10 of 110" in dict(_lines(rows[1], rows))["quantised"]

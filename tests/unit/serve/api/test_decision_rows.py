"""What `lbctl explain weight` and the API show of a weight: of what it is made, and what each kind of proxy is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
from lbctl.serve.api import decision_rows, pool_rows, schema
from lbctl.serve.api.decision_rows import PublishedWeight as Published
from lbctl.serve.telemetry.reports import SourceState
from tests.support.api import ACKNOWLEDGED, DRIVEN, ENVOY
from tests.support.control import NAME, Talk, pool, replica


def published(fleet: Pool, *weights: Weight, drained: str = "", kinds: tuple[str, ...] = ()) -> Mapping[str, Published]:
    """The weights that a loop has decided, in one proxy of each of these kinds."""
    decided = {item.name: weight for item, weight in zip(fleet.replicas, weights, strict=True)}
    held = (Override("drain", NAME, drained),) if drained else ()
    output = LoopOutput({fleet.name: decided})
    composed = compose(Snapshot(Topology((), (), (fleet,))), output, held, {}, 0.0)
    return decision_rows.published_weights(fleet, composed, [Proxy(kind, kind, ()) for kind in kinds or KINDS], {})


SLOW = Weight(rate=0.25, room=1.0, speed=0.25)
KINDS = ("envoy", "haproxy", "nginx")
WATCHED = Telemetry(sources=(MetricsSource("vllm", "http://{host}/metrics"),))


def test_each_kind_of_proxy_has_its_own_number_for_a_slow_replica() -> None:
    told = published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0))
    slow, peer = (told[name].quantised for name in ("r00000", "r00001"))
    parts = {kind: slow[kind] / peer[kind] for kind in KINDS}
    assert parts["envoy"] < parts["haproxy"] == parts["nginx"]
    assert told["r00000"].effective.share == 0.2


def test_a_replica_that_gets_nothing_new_has_no_number_and_takes_nothing_from_the_others() -> None:
    told = published(pool(3, telemetry=WATCHED), SLOW, from_capacity(1.0), from_capacity(4.0), drained="r00002")
    two = published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0))
    assert told["r00002"].quantised == {}
    assert [told[name].quantised for name in two] == [item.quantised for item in two.values()]


def test_only_the_kinds_that_are_driven_are_told() -> None:
    told = published(pool(1, telemetry=WATCHED), from_capacity(1.0), kinds=("haproxy",))
    assert told["r00000"].quantised == {"haproxy": 100}


def test_failing_sources_are_counted_by_pool_and_one_not_yet_looked_at_is_none_of_them() -> None:
    good, bad, new = (
        SourceState("vllm", "u", 1.0, 1.0),
        SourceState("dcgm", "u", 1.0, reason="dns"),
        SourceState("vllm", "u"),
    )
    found = decision_rows.sources([("b", bad), ("a", good), ("a", bad), ("b", bad), ("a", new)])
    assert found == schema.SourceCounts(5, 3, {"a": 1, "b": 2})


def test_what_a_composite_score_follows_is_a_load_and_no_speed() -> None:
    talk = Talk(pool(2, telemetry=WATCHED, weighting={"strategy": "composite"}))
    talk.look({name: {"queue": 4.0, "kv_cache": 0.5} for name in ("r00000", "r00001")})
    first = decisions(talk.state, NAME)[0]
    told = published(talk.pool, first.weight, from_capacity(1.0))[first.replica]
    row = decision_rows.decision(first, told, (), ACKNOWLEDGED, talk.now)
    assert row.speed is None
    assert row.load is not None
    assert row.load > 0
    lines = dict(_lines(row, (row,)))
    assert lines["load"].endswith(" per capacity")
    assert "speed" not in lines


def test_explain_says_of_what_a_weight_is_made() -> None:
    talk = Talk(pool(2, telemetry=WATCHED))
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    told = published(talk.pool, first.weight, from_capacity(1.0))[first.replica]
    row = decision_rows.decision(first, told, (), ACKNOWLEDGED, talk.now)
    peer = replace(row, quantised={kind: 2 * value for kind, value in told.quantised.items()})
    lines = dict(_lines(row, (row, peer)))
    assert (row.sent, row.room, row.of_peers_speed, row.held) == (0.25, 1.0, 0.25, 1.0)
    assert lines["of which"] == "room 1, 25% of its peers' speed, held at 100%"
    numbers = ", ".join(f"{kind}: {told.quantised[kind]} of {3 * told.quantised[kind]}" for kind in KINDS)
    assert lines["quantised"] == f"{numbers}; each kind counts on a scale of its own"
    assert lines["decided"] == "0.25"


def test_explain_says_that_a_weight_is_held_by_hand_until_when_and_why() -> None:
    talk = Talk(pool(2, telemetry=WATCHED))
    talk.look({"r00000": {}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    told = published(talk.pool, from_capacity(3.0), from_capacity(1.0))[first.replica]
    held = (
        Override("weight", NAME, "r00000", 3.0, "too hot", since=0.0, until=60.0),
        Override("drain", NAME, "r00001", since=0.0),
    )
    row = decision_rows.decision(first, told, held, ACKNOWLEDGED, talk.now)
    lines = dict(_lines(row, (row,)))
    assert lines["decided"] == "1, not sent: a weight is held by hand"
    assert lines["by hand"] == "weight 3, until 1970-01-01T00:01:00.000Z: too hot"
    assert lines["sent"] == "3 by hand, 75.0% of the pool's weight"


def _row(node: str, kind: str, state: str, last_good: str, *, connected: bool = True) -> schema.Proxy:
    sample = ENVOY if kind == "envoy" else DRIVEN
    return replace(sample, node=node, proxy=node, kind=kind, state=state, last_good=last_good, connected=connected)


def test_a_proxy_that_fails_has_not_acknowledged_and_is_counted() -> None:
    rows = [
        _row("edge", "envoy", "SYNCED", "v2"),
        _row("away", "envoy", "GONE", "v1", connected=False),
        _row("dead", "haproxy", "FAILING", "v2", connected=False),
        _row("mute", "haproxy", "WAITING", "v2"),
        _row("ng", "nginx", "SYNCED", "v2"),
        _row("alone", "nginx", "NOT DRIVEN", "", connected=False),
    ]
    assert decision_rows.acknowledged(rows, "v2") == schema.Acknowledged(4, 2, ("dead", "mute"))


def test_explain_says_where_haproxy_does_not_look_at_a_small_weight() -> None:
    told = published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0))
    assert "do not look at weights" in " ".join(told["r00000"].notes)
    assert told["r00001"].notes == ()
    assert (
        published(pool(2, telemetry=WATCHED), SLOW, from_capacity(1.0), kinds=("envoy", "nginx"))["r00000"].notes == ()
    )


# ── The same from every page ─────────────────────────────────────────────────────────────────────────────────────────


def _shares(fleet: Pool, *held: Override, ejected: tuple[str, ...] = ()) -> tuple[list[float], list[float]]:
    """Of the rows of `/api/v1/pools`, and of those of `/api/v1/decisions`."""
    output = LoopOutput({}, {NAME: dict.fromkeys(ejected, ("XID 79",))})
    composed = compose(Snapshot(Topology((), (), (fleet,))), output, held, {}, 0.0)
    (row,) = pool_rows.pools(composed, pool_rows.LiveState())
    weights = decision_rows.published_weights(fleet, composed, [], {})
    explained = [
        decision_rows.decision(item, weights[item.replica], composed.overrides, ACKNOWLEDGED, 0.0).share
        for item in decisions(Talk(fleet).state, NAME)
    ]
    return [replica.share for replica in row.replicas], explained


def test_status_and_explain_show_the_same_share() -> None:
    three = pool(3, telemetry=WATCHED)
    drained = Override("drain", NAME, "r00002")
    assert _shares(three, drained) == ([0.5, 0.5, 0], [0.5, 0.5, 0])
    assert _shares(three, drained, ejected=("r00001",)) == ([1, 0, 0], [1, 0, 0])
    assert _shares(three, drained, ejected=("r00000", "r00001")) == ([0, 0, 0], [0, 0, 0])
    spare = pool((replica("a"), replica("b"), replica("spare", priority=1)), telemetry=WATCHED)
    assert _shares(spare) == ([0.5, 0.5, 0], [0.5, 0.5, 0])
    assert _shares(spare, ejected=("a", "b")) == ([0, 0, 1], [0, 0, 1])
    filed = pool((replica("a"), replica("b", drain=True), replica("c", capacity=3.0)), telemetry=WATCHED)
    assert _shares(filed) == ([0.25, 0, 0.75], [0.25, 0, 0.75])


# ── Slow start that lbctl does ───────────────────────────────────────────────────────────────────────────────────────


def _ramping(*intervals: float) -> tuple[Pool, dict[str, Published], list[schema.Decision]]:
    """A pool of two whose second replica joined forty seconds ago, and nginx proxies with these `min_interval`s."""
    fleet = pool(2, telemetry=WATCHED, slow_start=SlowStart())
    alone = replace(fleet, replicas=fleet.replicas[:1])
    before, composed = (
        compose(Snapshot(Topology((), (), (each,))), LoopOutput(), (), {}, 0.0) for each in (alone, fleet)
    )
    own: dict[str, ForProxy] = {}
    for place, interval in enumerate(intervals):
        first = for_proxy(before, {}, Ramps(), 0.0, interval)
        joined = for_proxy(composed, {}, first.ramps, 1.0, interval)
        own[f"n{place}"] = for_proxy(composed, {}, joined.ramps, 41.0, interval)
    proxies = [Proxy("edge", "envoy", ()), *(Proxy(name, "nginx", ()) for name in own)]
    weights = decision_rows.published_weights(fleet, composed, proxies, own)
    rows = [
        decision_rows.decision(item, weights[item.replica], (), ACKNOWLEDGED, 0.0)
        for item in decisions(Talk(fleet).state, NAME)
    ]
    return fleet, dict(weights), rows


def test_explain_shows_the_weight_that_nginx_has_while_it_ramps() -> None:
    _, weights, rows = _ramping(30.0)
    assert [weights[name].ramp for name in ("r00000", "r00001")] == [1.0, 0.5]
    assert [weights[name].quantised["nginx"] for name in ("r00000", "r00001")] == [100, 50]
    assert weights["r00000"].quantised["envoy"] == weights["r00001"].quantised["envoy"]
    lines = dict(_lines(rows[1], rows))
    assert lines["slow start"] == "nginx has 50% of the weight so far; Envoy and HAProxy ramp by themselves"
    assert "nginx: 50 of 150" in lines["quantised"]
    assert "slow start" not in dict(_lines(rows[0], rows))


def test_explain_shows_how_far_the_picker_s_slow_start_is() -> None:
    item = pool(2, telemetry=WATCHED)
    composed = compose(Snapshot(Topology((), (), (item,))), LoopOutput(), (), {}, 0.0)
    weights = decision_rows.published_weights(item, composed, (), {}, picker_ramps={"r00001": 0.4})
    first, second = (
        decision_rows.decision(each, weights[each.replica], (), ACKNOWLEDGED, 0.0)
        for each in decisions(Talk(item).state, NAME)
    )
    assert dict(_lines(second, (first, second)))["slow start"] == "the picker gives it 40% of its weight so far"
    assert "slow start" not in dict(_lines(first, (first, second)))


def test_two_nginx_that_ramp_at_their_own_paces_have_a_number_each() -> None:
    _, weights, rows = _ramping(30.0, 45.0)
    assert weights["r00001"].quantised.keys() == {"envoy", "nginx n0", "nginx n1"}
    assert weights["r00001"].ramp == 0.1
    assert "nginx n0: 50 of 150, nginx n1: 10 of 110" in dict(_lines(rows[1], rows))["quantised"]

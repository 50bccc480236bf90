"""What `lbctl explain weight` and the API show of a weight: of what it is made, and what each kind of proxy is told."""

from __future__ import annotations

from lbctl.cli.explain import _lines
from lbctl.control.decisions import decisions
from lbctl.control.overrides import Override
from lbctl.ir.weight import Weight, plain
from lbctl.serve import insight
from lbctl.serve.scrape_state import SourceState
from tests.support_control import NAME, Talk, pool

SLOW = Weight(rate=0.25, room=1.0, speed=0.25)
KINDS = ("envoy", "haproxy", "nginx")


def test_each_kind_of_proxy_has_its_own_number_for_a_slow_replica() -> None:
    told = insight.told(pool(2), (SLOW, plain(1.0)), frozenset(), KINDS)
    slow, peer = (told[name].whole for name in ("r00000", "r00001"))
    parts = {kind: slow[kind] / peer[kind] for kind in KINDS}
    assert parts["envoy"] < parts["haproxy"] == parts["nginx"]
    assert told["r00000"].share == 0.2


def test_a_replica_that_gets_nothing_new_has_no_number_and_takes_nothing_from_the_others() -> None:
    told = insight.told(pool(3), (SLOW, plain(1.0), plain(4.0)), frozenset({"r00002"}), KINDS)
    two = insight.told(pool(2), (SLOW, plain(1.0)), frozenset(), KINDS)
    assert told["r00002"].whole == {}
    assert [told[name].whole for name in two] == [item.whole for item in two.values()]


def test_only_the_kinds_that_are_driven_are_told() -> None:
    told = insight.told(pool(1), (plain(1.0),), frozenset(), ("haproxy",))
    assert told["r00000"].whole == {"haproxy": 100}


def test_failing_sources_are_counted_by_pool_and_one_not_yet_looked_at_is_none_of_them() -> None:
    good, bad, new = (
        SourceState("vllm", "u", 1.0, 1.0),
        SourceState("dcgm", "u", 1.0, reason="dns"),
        SourceState("vllm", "u"),
    )
    found = insight.sources([("b", bad), ("a", good), ("a", bad), ("b", bad), ("a", new)])
    assert found == {"total": 5, "failing": 3, "pools": {"a": 1, "b": 2}}


def test_what_a_composite_score_follows_is_a_load_and_no_speed() -> None:
    talk = Talk(pool(2, weighting={"strategy": "composite"}))
    talk.look({name: {"queue": 4.0, "kv_cache": 0.5} for name in ("r00000", "r00001")})
    first = decisions(talk.state, NAME)[0]
    told = insight.told(talk.pool, (first.weight, plain(1.0)), frozenset(), KINDS)[first.replica]
    row = insight.decision(first, told, (), talk.now) | {"acknowledged": {"have_it": 0, "proxies": 0, "waiting": []}}
    assert row["speed"] is None
    assert row["load"] > 0
    lines = dict(_lines(row, (row,)))
    assert lines["load"].endswith(" per capacity")
    assert "speed" not in lines


def test_explain_says_of_what_a_weight_is_made() -> None:
    talk = Talk(pool(2))
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    told = insight.told(talk.pool, (first.weight, plain(1.0)), frozenset(), KINDS)[first.replica]
    row = insight.decision(first, told, (), talk.now) | {"acknowledged": {"have_it": 0, "proxies": 0, "waiting": []}}
    peer = {"quantised": {kind: 2 * value for kind, value in told.whole.items()}}
    lines = dict(_lines(row, (row, peer)))
    assert (row["sent"], row["room"], row["of_peers_speed"], row["held"]) == (0.25, 1.0, 0.25, 1.0)
    assert lines["of which"] == "room 1, 25% of its peers' speed, held at 100%"
    numbers = ", ".join(f"{kind}: {told.whole[kind]} of {3 * told.whole[kind]}" for kind in KINDS)
    assert lines["quantised"] == f"{numbers}; each kind counts on a scale of its own"
    assert lines["decided"] == "0.25"


def test_explain_says_that_a_weight_is_held_by_hand_until_when_and_why() -> None:
    talk = Talk(pool(2))
    talk.look({"r00000": {}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    told = insight.told(talk.pool, (plain(3.0), plain(1.0)), frozenset(), KINDS)[first.replica]
    held = (
        Override("weight", NAME, "r00000", 3.0, "too hot", since=0.0, until=60.0),
        Override("drain", NAME, "r00001", since=0.0),
    )
    row = insight.decision(first, told, held, talk.now) | {"acknowledged": {"have_it": 0, "proxies": 0, "waiting": []}}
    lines = dict(_lines(row, (row,)))
    assert lines["decided"] == "1, not sent: a weight is held by hand"
    assert lines["by hand"] == "weight 3, until 1970-01-01T00:01:00.000Z: too hot"
    assert lines["sent"] == "3 by hand, 75.0% of the pool's weight"


def _row(node: str, kind: str, state: str, last_good: str, *, connected: bool = True) -> dict[str, object]:
    return {
        "node": node,
        "proxy": node,
        "kind": kind,
        "state": state,
        "last_good": last_good,
        "connected": connected,
    }


def test_a_proxy_that_fails_has_not_acknowledged_and_is_counted() -> None:
    rows = [
        _row("edge", "envoy", "SYNCED", "v2"),
        _row("away", "envoy", "GONE", "v1", connected=False),
        _row("dead", "haproxy", "FAILING", "v2", connected=False),
        _row("mute", "haproxy", "WAITING", "v2"),
        _row("ng", "nginx", "SYNCED", "v2"),
        _row("alone", "nginx", "NOT DRIVEN", "", connected=False),
    ]
    assert insight.acknowledged(rows, "v2") == {"proxies": 4, "have_it": 2, "waiting": ["dead", "mute"]}


def test_explain_says_where_haproxy_does_not_look_at_a_small_weight() -> None:
    told = insight.told(pool(2), (SLOW, plain(1.0)), frozenset(), KINDS)
    assert "do not look at weights" in " ".join(told["r00000"].notes)
    assert told["r00001"].notes == ()
    assert insight.told(pool(2), (SLOW, plain(1.0)), frozenset(), ("envoy", "nginx"))["r00000"].notes == ()

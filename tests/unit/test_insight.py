"""What `lbctl explain weight` and the API show of a weight: of what it is made, and what each kind of proxy is told."""

from __future__ import annotations

from lbctl.cli.explain import _lines
from lbctl.control.decisions import decisions
from lbctl.ir.weight import Weight, plain
from lbctl.serve import insight
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


def test_explain_says_of_what_a_weight_is_made() -> None:
    talk = Talk(pool(2))
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    talk.look({"r00000": {"speed": 0.25}, "r00001": {}})
    first = decisions(talk.state, NAME)[0]
    told = insight.told(talk.pool, (first.weight, plain(1.0)), frozenset(), KINDS)[first.replica]
    row = insight.decision(first, told, (), talk.now) | {"acknowledged": {"have_it": 0, "proxies": 0, "waiting": []}}
    lines = dict(_lines(row))
    assert (row["sent"], row["room"], row["of_peers_speed"], row["held"]) == (0.25, 1.0, 0.25, 1.0)
    assert lines["of which"] == "room 1, 25% of its peers' speed, held at 100%"
    assert lines["quantised"] == ", ".join(f"{kind}: {told.whole[kind]}" for kind in KINDS)

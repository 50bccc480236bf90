"""Which entry of `proxies` a node is: its id, the length of patterns, its certificate, its locality."""

from __future__ import annotations

from typing import Literal

import pytest

from lbctl.ir.proxies import Control, Proxy
from lbctl.ir.topology import Topology
from lbctl.xds.protocol.nodes import RefusedNode, assign
from lbctl.xds.protocol.stream import XdsNode

NONE: frozenset[str] = frozenset()


def entry(name: str, *nodes: str, san: str | None = None, kind: str = "envoy") -> Proxy:
    return Proxy(name, kind, (1, 40), nodes=nodes, node_san=san, region="of-the-file", zone="of-the-file")


def fleet(*proxies: Proxy, unmatched: Literal["nothing", "all"] = "nothing") -> Topology:
    return Topology((), (), (), proxies, Control(unmatched_nodes=unmatched))


def chosen(topology: Topology, node_id: str, *sans: str) -> str:
    found = assign(topology, XdsNode(node_id), frozenset(sans))
    assert isinstance(found, Proxy), found
    return found.name


def test_an_exact_id_beats_every_pattern() -> None:
    topology = fleet(entry("a", "edge-very-long-pattern-*", "edge-*"), entry("b", "edge-1"), entry("c", "edge-?"))
    assert chosen(topology, "edge-1") == "b"


def test_the_longest_pattern_wins_then_the_name() -> None:
    topology = fleet(entry("a", "*"), entry("b", "edge-*"), entry("c", "edge-eu-*"), entry("d", "edge-eu-*"))
    assert chosen(topology, "edge-eu-1") == "c"
    assert chosen(topology, "edge-us-1") == "b"
    assert chosen(topology, "other") == "a"


def test_an_entry_without_nodes_is_for_the_node_of_its_name() -> None:
    topology = fleet(entry("edge"), entry("other", "x"))
    assert chosen(topology, "edge") == "edge"
    assert isinstance(assign(topology, XdsNode("edge-1"), NONE), RefusedNode)


def test_entries_of_other_kinds_of_proxies_are_not_meant() -> None:
    assert isinstance(assign(fleet(entry("nginx", "*", kind="nginx")), XdsNode("edge-1"), NONE), RefusedNode)


@pytest.mark.parametrize("node_id", ["edge.1", "xedge-1", "edge-1\n", "EDGE-1", "edge-12"])
def test_a_pattern_fits_the_whole_id_and_is_no_regex(node_id: str) -> None:
    assert isinstance(assign(fleet(entry("a", "edge-?")), XdsNode(node_id), NONE), RefusedNode)


def test_region_and_zone_are_those_of_the_node() -> None:
    found = assign(fleet(entry("a", "*")), XdsNode("edge-1", region="eu", zone="eu-1"), NONE)
    assert isinstance(found, Proxy)
    assert (found.region, found.zone) == ("eu", "eu-1")
    elsewhere = assign(fleet(entry("a", "*")), XdsNode("edge-1"), NONE)
    assert isinstance(elsewhere, Proxy)
    assert (elsewhere.region, elsewhere.zone) == (None, None)


def test_without_a_proxies_section_every_node_gets_the_fleet() -> None:
    found = assign(fleet(), XdsNode("anything", zone="z"), NONE)
    assert isinstance(found, Proxy)
    assert (found.kind, found.listeners, found.instances, found.zone) == ("envoy", (), 1, "z")


def test_a_node_that_nothing_names_gets_what_is_configured() -> None:
    refused = assign(fleet(entry("a", "edge-*")), XdsNode("stray"), NONE)
    assert refused == RefusedNode("no entry of proxies is for the node 'stray'")
    named_like_the_kind = entry("envoy", "edge-*")
    found = assign(fleet(named_like_the_kind, unmatched="all"), XdsNode("stray"), NONE)
    assert isinstance(found, Proxy)
    assert found.name != "envoy", "it would pass for the entry of that name, and share its limits"
    assert found.listeners == ()


def test_the_certificate_must_say_what_the_entry_asks_for() -> None:
    topology = fleet(entry("a", "edge-*", san="spiffe://example.com/edge-*"), entry("b", "*"))
    assert chosen(topology, "edge-1", "edge-1.example.com", "spiffe://example.com/edge-1") == "a"
    for sans in ([], ["spiffe://example.org/edge-1"], ["xspiffe://example.com/edge-1"], ["edge-1"]):
        found = assign(topology, XdsNode("edge-1"), frozenset(sans))
        assert isinstance(found, RefusedNode), "and it does not fall through to the wider pattern"
        assert found.denied
        assert "proxies.a" in found.reason
    assert chosen(topology, "other") == "b"


def test_a_star_in_a_name_of_a_certificate_stays_within_its_segment() -> None:
    topology = fleet(entry("a", "*", san="spiffe://example.com/*/edge"))
    assert chosen(topology, "edge-1", "spiffe://example.com/eu/edge") == "a"
    assert isinstance(assign(topology, XdsNode("edge-1"), frozenset({"spiffe://example.com/eu/x/edge"})), RefusedNode)


def test_equal_patterns_are_told_apart_by_the_certificate() -> None:
    topology = fleet(entry("a", "*", san="spiffe://a/*"), entry("b", "*", san="spiffe://b/*"))
    assert chosen(topology, "edge-1", "spiffe://b/x") == "b"
    assert isinstance(assign(topology, XdsNode("edge-1"), frozenset({"spiffe://c/x"})), RefusedNode)


def test_a_dot_and_brackets_of_a_name_stand_for_themselves() -> None:
    topology = fleet(entry("a", "*", san="edge[1].example.com"))
    assert chosen(topology, "n", "edge[1].example.com") == "a"
    assert isinstance(
        assign(topology, XdsNode("n"), frozenset({"edge1.example.com", "edge[1]xexample.com"})), RefusedNode
    )

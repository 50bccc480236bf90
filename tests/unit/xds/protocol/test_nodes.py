"""The entry of `proxies` for a node: by its id, the longest pattern and its certificate."""

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


def topology_of(*proxies: Proxy, unmatched: Literal["nothing", "all"] = "nothing") -> Topology:
    return Topology((), (), (), proxies, Control(unmatched_nodes=unmatched))


def assigned_name(topology: Topology, node_id: str, *sans: str) -> str:
    assigned = assign(topology, XdsNode(node_id), frozenset(sans))
    assert isinstance(assigned, Proxy), assigned
    return assigned.name


def test_an_exact_id_beats_every_pattern() -> None:
    topology = topology_of(entry("a", "edge-very-long-pattern-*", "edge-*"), entry("b", "edge-1"), entry("c", "edge-?"))
    assert assigned_name(topology, "edge-1") == "b"


def test_the_longest_pattern_wins_then_the_name() -> None:
    topology = topology_of(entry("a", "*"), entry("b", "edge-*"), entry("c", "edge-eu-*"), entry("d", "edge-eu-*"))
    assert assigned_name(topology, "edge-eu-1") == "c"
    assert assigned_name(topology, "edge-us-1") == "b"
    assert assigned_name(topology, "other") == "a"


def test_an_entry_without_nodes_matches_the_node_of_its_name() -> None:
    topology = topology_of(entry("edge"), entry("other", "x"))
    assert assigned_name(topology, "edge") == "edge"
    assert isinstance(assign(topology, XdsNode("edge-1"), NONE), RefusedNode)


def test_entries_of_other_proxy_kinds_do_not_match() -> None:
    assert isinstance(assign(topology_of(entry("nginx", "*", kind="nginx")), XdsNode("edge-1"), NONE), RefusedNode)


@pytest.mark.parametrize("node_id", ["edge.1", "xedge-1", "edge-1\n", "EDGE-1", "edge-12"])
def test_a_pattern_matches_the_whole_id_and_is_not_a_regex(node_id: str) -> None:
    assert isinstance(assign(topology_of(entry("a", "edge-?")), XdsNode(node_id), NONE), RefusedNode)


def test_region_and_zone_come_from_the_node() -> None:
    assigned = assign(topology_of(entry("a", "*")), XdsNode("edge-1", region="eu", zone="eu-1"), NONE)
    assert isinstance(assigned, Proxy)
    assert (assigned.region, assigned.zone) == ("eu", "eu-1")
    elsewhere = assign(topology_of(entry("a", "*")), XdsNode("edge-1"), NONE)
    assert isinstance(elsewhere, Proxy)
    assert (elsewhere.region, elsewhere.zone) == (None, None)


def test_without_a_proxies_section_every_node_gets_the_fleet() -> None:
    assigned = assign(topology_of(), XdsNode("anything", zone="z"), NONE)
    assert isinstance(assigned, Proxy)
    assert (assigned.kind, assigned.listeners, assigned.instances, assigned.zone) == ("envoy", (), 1, "z")


def test_an_unmatched_node_is_refused_or_gets_the_fleet() -> None:
    refused = assign(topology_of(entry("a", "edge-*")), XdsNode("stray"), NONE)
    assert refused == RefusedNode("no entry in `proxies` matches the node 'stray'")
    named_like_the_kind = entry("envoy", "edge-*")
    assigned = assign(topology_of(named_like_the_kind, unmatched="all"), XdsNode("stray"), NONE)
    assert isinstance(assigned, Proxy)
    assert assigned.name != "envoy", "the name belongs to an entry with its own limits"
    assert assigned.listeners == ()


def test_the_certificate_must_match_the_entry() -> None:
    topology = topology_of(entry("a", "edge-*", san="spiffe://example.com/edge-*"), entry("b", "*"))
    assert assigned_name(topology, "edge-1", "edge-1.example.com", "spiffe://example.com/edge-1") == "a"
    for sans in ([], ["spiffe://example.org/edge-1"], ["xspiffe://example.com/edge-1"], ["edge-1"]):
        assigned = assign(topology, XdsNode("edge-1"), frozenset(sans))
        assert isinstance(assigned, RefusedNode), "a wider pattern must not match instead"
        assert assigned.denied
        assert "proxies.a" in assigned.reason
    assert assigned_name(topology, "other") == "b"


def test_a_star_in_a_san_pattern_matches_one_segment() -> None:
    topology = topology_of(entry("a", "*", san="spiffe://example.com/*/edge"))
    assert assigned_name(topology, "edge-1", "spiffe://example.com/eu/edge") == "a"
    assert isinstance(assign(topology, XdsNode("edge-1"), frozenset({"spiffe://example.com/eu/x/edge"})), RefusedNode)


def test_the_certificate_decides_between_equal_patterns() -> None:
    topology = topology_of(entry("a", "*", san="spiffe://a/*"), entry("b", "*", san="spiffe://b/*"))
    assert assigned_name(topology, "edge-1", "spiffe://b/x") == "b"
    assert isinstance(assign(topology, XdsNode("edge-1"), frozenset({"spiffe://c/x"})), RefusedNode)


def test_dots_and_brackets_in_a_san_pattern_are_literal() -> None:
    topology = topology_of(entry("a", "*", san="edge[1].example.com"))
    assert assigned_name(topology, "n", "edge[1].example.com") == "a"
    assert isinstance(
        assign(topology, XdsNode("n"), frozenset({"edge1.example.com", "edge[1]xexample.com"})), RefusedNode
    )

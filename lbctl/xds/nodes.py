"""Which entry of `proxies` a connected node is, and what it therefore gets.

A node says who it is; nothing but its client certificate proves it. Where an entry has a `node_san`, the certificate
decides, and a node without the right one gets nothing at all: it never falls through to a wider pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from lbctl.base.diagnostics import show
from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.targets import target
from lbctl.xds.stream import Node

_KIND = "envoy"


@dataclass(frozen=True, slots=True)
class Refused:
    """The node gets nothing. `denied`: its certificate does not say what the entry asks for; it may not even wait."""

    reason: str
    denied: bool = False


def assign(topology: Topology, node: Node, sans: frozenset[str]) -> Proxy | Refused:
    """The entry with the node's id, else with the longest pattern that it fits, in the node's own region and zone.

    Entries with equal patterns are told apart by their `node_san`, then by name. An entry without `nodes` is for the
    node that has its name as id. `sans`: the alternative names of the client certificate, empty without one.
    """
    fitting = [(rank, item) for item in topology.proxies if item.kind == _KIND and (rank := _rank(item, node.id))]
    if not fitting:
        return _unmatched(topology, node)
    best = max(rank for rank, _ in fitting)
    chosen = [item for rank, item in fitting if rank == best]
    for item in chosen:
        if item.node_san is None or any(_says(item.node_san, san) for san in sans):
            return _placed(item, node)
    return Refused(_denial(chosen[0], sans), denied=True)


def _unmatched(topology: Topology, node: Node) -> Proxy | Refused:
    if topology.proxies and topology.control.unmatched_nodes == "nothing":
        return Refused(f"no entry of proxies is for the node {show(node.id)}")
    taken = any(item.name == _KIND for item in topology.proxies)
    return _placed(Proxy(f"-{_KIND}" if taken else _KIND, _KIND, target(_KIND).versions[0]), node)


def _placed(proxy: Proxy, node: Node) -> Proxy:
    return replace(proxy, region=node.region or None, zone=node.zone or None)


def _rank(proxy: Proxy, node_id: str) -> tuple[bool, int] | None:
    """How closely the entry names the node; None: not at all."""
    patterns = proxy.nodes or (proxy.name,)
    return max(
        ((item == node_id, len(item)) for item in patterns if _pattern(item, ".").fullmatch(node_id)), default=None
    )


def _says(wanted: str, san: str) -> bool:
    return _pattern(wanted, "[^/]").fullmatch(san) is not None


def _denial(proxy: Proxy, sans: frozenset[str]) -> str:
    said = f"says {', '.join(show(san) for san in sorted(sans)[:5])}" if sans else "is missing or says no name"
    return f"proxies.{proxy.name} is for client certificates that say {proxy.node_san!r}; this one {said}"


@lru_cache(maxsize=4096)
def _pattern(text: str, any_character: str) -> re.Pattern[str]:
    """`*` stands for any number of characters, `?` for one; within an alternative name neither crosses a `/`."""
    whole = "".join({"*": f"{any_character}*", "?": any_character}.get(char, re.escape(char)) for char in text)
    return re.compile(whole, re.DOTALL)

"""Matches a connected node to an entry of `proxies`, which determines the node's resources.

A node reports its own ID, and only its client certificate proves the ID. If an entry has a `node_san`, the certificate
must match it. A node with another certificate is rejected and never falls back to a wider pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from lbctl.base.diagnostics import show
from lbctl.ir.proxies import Proxy, xds_proxies
from lbctl.ir.topology import Topology
from lbctl.targets import xds_kinds
from lbctl.xds.protocol.stream import XdsNode


@dataclass(frozen=True, slots=True)
class RefusedNode:
    """The reason why the node gets no resources.

    If `denied`, its certificate does not match, and its stream is ended.
    """

    reason: str
    denied: bool = False


def assign(topology: Topology, node: XdsNode, sans: frozenset[str]) -> Proxy | RefusedNode:
    """Return the entry for the node's ID, or else the one with the longest matching pattern, with the node's locality.

    If entries have equal patterns, their `node_san` decides, and then their name. An entry without `nodes` matches the
    node whose ID is its name. `sans`: the alternative names of the client certificate; empty without a certificate.
    """
    served = xds_proxies(topology, xds_kinds())
    matches = [(rank, item) for item in served.named if (rank := _rank(item, node.id))]
    if not matches:
        reason = f"no entry in `proxies` matches the node {show(node.id)}"
        return _with_locality(served.unnamed, node) if served.unnamed else RefusedNode(reason)
    best = max(rank for rank, _ in matches)
    chosen = [item for rank, item in matches if rank == best]
    for item in chosen:
        if item.node_san is None or any(_matches(item.node_san, san) for san in sans):
            return _with_locality(item, node)
    return RefusedNode(_denial(chosen[0], sans), denied=True)


def _with_locality(proxy: Proxy, node: XdsNode) -> Proxy:
    return replace(proxy, region=node.region or None, zone=node.zone or None)


def _rank(proxy: Proxy, node_id: str) -> tuple[bool, int] | None:
    """Return how specifically the entry matches the node, or None if it does not match."""
    patterns = proxy.nodes or (proxy.name,)
    return max(
        ((item == node_id, len(item)) for item in patterns if _pattern(item, ".").fullmatch(node_id)), default=None
    )


def _matches(wanted: str, san: str) -> bool:
    return _pattern(wanted, "[^/]").fullmatch(san) is not None


def _denial(proxy: Proxy, sans: frozenset[str]) -> str:
    shown_names = f"has {', '.join(show(san) for san in sorted(sans)[:5])}" if sans else "is missing or has no name"
    return f"proxies.{proxy.name} accepts client certificates with the name {proxy.node_san!r}; this one {shown_names}"


@lru_cache(maxsize=4096)
def _pattern(text: str, any_character: str) -> re.Pattern[str]:
    """Compile a pattern: `*` matches any characters, `?` one.

    In an alternative name, neither `*` nor `?` matches a `/`.
    """
    whole = "".join({"*": f"{any_character}*", "?": any_character}.get(char, re.escape(char)) for char in text)
    return re.compile(whole, re.DOTALL)

"""Selects the proxies that need a driver.

An Envoy connects to lbctl by itself, unless it reads files written by `lbctl render`. lbctl drives every other proxy
whose entry allows it.
"""

from __future__ import annotations

from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology
from lbctl.serve.drivers.registry import driver_kind
from lbctl.targets import target


def needs_driver(topology: Topology) -> tuple[Proxy, ...]:
    """Return the proxies that are not configured through xDS, according to their entries."""
    return tuple(item for item in topology.proxies if not target(item.kind).served_by_xds or _reads_files(item))


def undriven(proxy: Proxy) -> str:
    """Return the reason why the proxy has no driver; empty if it has one or is configured through xDS."""
    if target(proxy.kind).served_by_xds:
        return f"{target(proxy.kind).title} with `config` reads files unless it connects" if _reads_files(proxy) else ""
    kind = driver_kind(proxy.kind)
    return kind.missing(proxy) if kind else f"lbctl has no driver for {target(proxy.kind).title}"


def driven(topology: Topology) -> tuple[Proxy, ...]:
    """Return the proxies that have a driver."""
    return tuple(item for item in needs_driver(topology) if not undriven(item))


def _reads_files(proxy: Proxy) -> bool:
    """Return whether an Envoy reads files written by `lbctl render`, unless it connects anyway."""
    names_nodes = bool(proxy.nodes) or proxy.node_san is not None
    return target(proxy.kind).served_by_xds and proxy.config is not None and not names_nodes

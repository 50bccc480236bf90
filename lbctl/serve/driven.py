"""Which proxies the control plane drives: an Envoy comes by itself, a HAProxy or nginx where its entry says how."""

from __future__ import annotations

from lbctl.ir.proxies import Proxy
from lbctl.ir.topology import Topology

BESIDE = frozenset({"haproxy", "nginx"})
"""The kinds that are driven from the machine of the control plane."""


def undriven(proxy: Proxy) -> str:
    """Why nobody drives it from here; empty where that is done, also for an Envoy."""
    by_file = proxy.config and proxy.reload
    if proxy.kind == "haproxy" and not (proxy.runtime_api or proxy.agent_check or by_file):
        return "it has no runtime_api, no agent_check, and no config with reload"
    if proxy.kind == "nginx" and not by_file:
        return "it has no config with reload"
    return ""


def driven(topology: Topology) -> tuple[Proxy, ...]:
    """The proxies that are driven from here, besides the Envoys."""
    return tuple(item for item in topology.proxies if item.kind in BESIDE and not undriven(item))

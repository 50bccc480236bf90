"""The facts of a proxy entry and of the control plane."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.facts.words import Fact, percent, time, under
from lbctl.ir.proxies import Control, Proxy, ServerTls


def proxy(item: Proxy) -> Iterator[Fact]:
    yield ("kind",), item.kind
    yield ("version",), ".".join(map(str, item.version))
    yield ("listeners",), item.listeners or "all"
    yield ("instances",), item.instances
    yield ("region",), item.region
    yield ("zone",), item.zone
    yield ("config",), item.config
    if item.reload:
        yield ("reload", "command"), " ".join(item.reload.command)
        yield ("reload", "min_interval"), time(item.reload.min_interval)
    yield ("runtime_api",), item.runtime_api
    yield ("agent_check", "bind"), item.agent_check
    yield ("nodes",), tuple(sorted(item.nodes)) or None
    yield ("node_san",), item.node_san
    yield ("admin",), item.admin


def control(item: Control) -> Iterator[Fact]:
    yield ("xds", "bind"), item.xds_bind
    yield from under("xds", _tls(item.xds_tls))
    yield ("xds", "unmatched_nodes"), item.unmatched_nodes
    yield ("api", "bind"), item.api_bind
    yield ("api", "token_file"), item.api_token_file
    yield from under("api", _tls(item.api_tls))
    yield ("logs", "bind"), item.logs_bind
    yield ("state",), item.state
    yield ("max_shrink",), percent(item.max_shrink)


def _tls(item: ServerTls | None) -> Iterator[Fact]:
    if item is not None:
        yield from ((("tls", name), getattr(item, name)) for name in ("certificate", "key", "client_ca"))

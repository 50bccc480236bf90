"""The proxy's own metrics: at their address, and nothing else there."""

from __future__ import annotations

from typing import Any

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import bind, fleet_of, running
from tests.support.processes.ports import free_port
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

_PAGES = {"nginx": "/stub_status", "haproxy": "/metrics", "envoy": "/metrics"}
_FIGURES = {"nginx": "server accepts handled requests", "haproxy": "haproxy_backend_", "envoy": "envoy_cluster_"}
_OTHER = (
    "/", "/stats", "/stats/prometheus", "/config_dump", "/metrics/", "/metrics/../config_dump", "/quitquitquit", "/x",
    "/metrics/%2e%2e/config_dump",
)  # fmt: skip


def test_metrics_listener_serves_only_metrics(kind: Kind) -> None:
    port = free_port()
    keys: dict[str, Any] = {"kind": kind, "metrics": f"127.0.0.1:{port}"}
    if kind == "envoy":
        keys["admin"] = bind()
    with replicas("a") as (a,):
        fleet = fleet_of([a], proxies={"edge": keys})
        with running(kind, fleet) as gateway:
            assert gateway.get().ok
            figures = Client(port)
            eventually(lambda: _FIGURES[kind] in figures.get(_PAGES[kind]).text)
            assert [figures.get(path).status for path in _OTHER if path != _PAGES[kind]] == [404] * len(_OTHER)
            assert figures.post(_PAGES["envoy"], b"").status in (404, 405)
            assert gateway.get(_PAGES[kind]).header("x-replica") == gateway.get("/x").header("x-replica")
            assert _FIGURES[kind] not in gateway.get(_PAGES[kind]).text

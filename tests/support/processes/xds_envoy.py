"""Real Envoys whose configuration comes by xDS: their bootstrap, and their admin interface."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any

import requests

from lbctl.targets.envoy.bootstrap import CONTROL_PLANE
from tests.support.processes.certs import Pair
from tests.support.processes.client import Client
from tests.support.processes.ports import HOST, listens
from tests.support.processes.proxies import Envoy

START_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class XdsTls:
    """TLS files of an Envoy for the control plane."""

    ca: Path
    pair: Pair | None = None


class XdsEnvoy(Envoy):
    """An Envoy whose configuration comes by xDS. `listeners`: name → port that it should open."""

    def __init__(
        self, binary: Path, directory: Path, config: Path, node: str, admin: int, listeners: Mapping[str, int]
    ) -> None:
        super().__init__(binary, directory, config, [admin])
        self.node = node
        self.admin = admin
        self.listeners = dict(listeners)

    def await_listeners(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until this process listens on all its ports."""
        pid = self.process.pid
        deadline = time.monotonic() + timeout
        while missing := [name for name, port in self.listeners.items() if not listens(pid, port)]:
            self.assert_alive()
            assert time.monotonic() < deadline, f"{self.node} does not listen for {missing}"
            time.sleep(0.01)

    def client(self, listener: str = "", tls: SSLContext | None = None, server_name: str | None = None) -> Client:
        """Return a client of a listener, by default the first."""
        return Client(self.listeners[listener or next(iter(self.listeners))], tls, server_name)

    def freeze(self) -> None:
        """Send SIGSTOP: the connections stay, and nothing is read from them."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.thaw()
        super().stop()

    # ── Its admin port ───────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, path: str) -> str:
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(f"http://{HOST}:{self.admin}{path}", timeout=60)
        answer.raise_for_status()
        return answer.text

    def stats(self, pattern: str = "") -> dict[str, int]:
        """Return the counters and gauges whose names match the regular expression."""
        stats = json.loads(self.ask("/stats?format=json" + (f"&filter={pattern}" if pattern else "")))["stats"]
        return {item["name"]: item["value"] for item in stats if "name" in item}

    def stat(self, name: str) -> int:
        """Return one counter or gauge; 0 if it does not exist."""
        return self.stats(f"^{re.escape(name)}$").get(name, 0)

    def hosts(self, cluster: str) -> dict[str, dict[str, Any]]:
        """Return address → the host in /clusters (weight, health_status, hostname, stats …)."""
        whole = json.loads(self.ask("/clusters?format=json")).get("cluster_statuses", [])
        return {
            _where(host["address"]): host
            for item in whole
            if item["name"] == cluster
            for host in item.get("host_statuses", [])
        }

    def weights(self, cluster: str) -> dict[str, int]:
        """Return address → effective weight."""
        return {where: host.get("weight", 0) for where, host in self.hosts(cluster).items()}

    def config_dump(self) -> dict[str, Any]:
        """Return the whole configuration, including endpoints."""
        dump: dict[str, Any] = json.loads(self.ask("/config_dump?include_eds"))
        return dump

    def resources(self) -> dict[str, dict[str, Any]]:
        """Return the xDS resources as kind → name → message, without differences between two Envoys with the same
        content: times, versions, order."""
        resources: dict[str, dict[str, Any]] = {kind: {} for kind in ("cds", "eds", "lds", "rds", "sds")}
        for part in self.config_dump()["configs"]:
            for item in part.get("dynamic_active_clusters", []):
                resources["cds"][item["cluster"]["name"]] = item["cluster"]
            for item in part.get("dynamic_endpoint_configs", []):
                resources["eds"][item["endpoint_config"]["cluster_name"]] = item["endpoint_config"]
            for item in part.get("dynamic_listeners", []):
                resources["lds"][item["name"]] = item.get("active_state", {}).get("listener")
            for item in part.get("dynamic_route_configs", []):
                resources["rds"][item["route_config"]["name"]] = item["route_config"]
            for item in part.get("dynamic_active_secrets", []):
                resources["sds"][item["name"]] = item["secret"]
        return resources

    def warming(self) -> int:
        """Return how many clusters and listeners are warming."""
        stats = self.stats("warming_clusters|total_listeners_warming")
        return sum(stats.values())

    def updates(self, kind: str = "") -> Counter[str]:
        """Return how often resources were accepted and rejected, for example `cds.update_success`; only for `kind` if
        it is given."""
        wanted = r"(update_success|update_rejected|update_attempt)$"
        counts: Counter[str] = Counter()
        for name, value in self.stats(wanted).items():
            parts = name.split(".")
            which = {"cluster_manager": "cds", "listener_manager": "lds"}.get(parts[0], parts[0])
            which = {"cluster": "eds", "http": "rds", "sds": "sds"}.get(which, which)
            if not kind or which == kind:
                counts[f"{which}.{parts[-1]}"] += value
        return counts


def bootstrap_of(
    xds: int | str,
    node: str,
    admin: int,
    *,
    delta: bool = True,
    locality: Mapping[str, str] | None = None,
    tls: XdsTls | None = None,
) -> dict[str, Any]:
    """Return a bootstrap with clusters and listeners by ADS from 127.0.0.1:xds, or from the Unix socket of that path,
    to which Envoy reconnects soon after the connection is lost."""
    retry = {"retry_back_off": {"base_interval": "0.1s", "max_interval": "0.5s"}}
    services = [{"envoy_grpc": {"cluster_name": CONTROL_PLANE, "retry_policy": retry}}]
    source = {"ads": {}, "resource_api_version": "V3"}
    cluster: dict[str, Any] = {
        "name": CONTROL_PLANE,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {"cluster_name": CONTROL_PLANE, "endpoints": [{"lb_endpoints": [_endpoint(xds)]}]},
    }
    if tls is not None:
        cluster["transport_socket"] = _transport(tls)
    return {
        "node": {"id": node, "cluster": "e2e", **({"locality": dict(locality)} if locality else {})},
        "admin": {"address": _endpoint(admin)["endpoint"]["address"]},
        "cluster_manager": {
            "load_stats_config": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": services}
        },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC" if delta else "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": services,
            },
            "cds_config": source,
            "lds_config": source,
        },
        "static_resources": {"clusters": [cluster]},
    }


def _endpoint(where: int | str) -> dict[str, Any]:
    if isinstance(where, str):
        return {"endpoint": {"address": {"pipe": {"path": where}}}}
    return {"endpoint": {"address": {"socket_address": {"address": HOST, "port_value": where}}}}


def _transport(tls: XdsTls) -> dict[str, Any]:
    common: dict[str, Any] = {"validation_context": {"trusted_ca": {"filename": str(tls.ca)}}}
    if tls.pair is not None:
        chain = {"certificate_chain": {"filename": str(tls.pair.certificate)}}
        common["tls_certificates"] = [{**chain, "private_key": {"filename": str(tls.pair.key)}}]
    context = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": context, "sni": "localhost", "common_tls_context": common},
    }


def _where(address: Mapping[str, Any]) -> str:
    socket = address.get("socket_address")
    return f"{socket['address']}:{socket['port_value']}" if socket else str(address["pipe"]["path"])

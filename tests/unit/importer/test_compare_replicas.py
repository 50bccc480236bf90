"""Servers that the import left out get no requests of a comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources import envoy, haproxy, nginx
from lbctl.importer.compare.sources.removed import LOST_REPLICAS, Rewritten
from lbctl.importer.envoy.read import read as read_envoy
from lbctl.importer.haproxy.read import read as read_haproxy
from lbctl.importer.nginx.read import read as read_nginx
from tests.support.importer import envoy_text

REPLICAS = {"10.0.0.1:80": 21000, "unix:/run/replica.sock": 21001}


def lost(source: Rewritten) -> list[str]:
    return [item.name for item in source.removed if item.reason == LOST_REPLICAS]


def places(directory: Path, replicas: dict[str, int]) -> StandIns:
    return StandIns(directory, {"0.0.0.0:80": 20000}, replicas, 9)


def envoy_ports(directory: Path, replicas: dict[str, int]) -> tuple[list[int], list[str]]:
    own = "{address: {socket_address: {address: 10.0.0.1, port_value: 80}}}"
    others = "".join(
        f", {{endpoint: {{address: {{pipe: {{path: '{path}'}}}}}}}}" for path in ("/run/replica.sock", "@x")
    )
    file = directory / "envoy.yaml"
    file.write_text(envoy_text().replace(f"{{endpoint: {own}}}", f"{{endpoint: {own}}}{others}", 1))
    source = envoy.rewrite(read_envoy(str(file), Diagnostics()), places(directory, replicas))
    (cluster,) = [item for item in json.loads(source.text)["static_resources"]["clusters"] if item["name"] == "c"]
    (group,) = cluster["load_assignment"]["endpoints"]
    sockets = [item["endpoint"]["address"]["socket_address"] for item in group["lb_endpoints"]]
    return [item["port_value"] for item in sockets], lost(source)


def test_lost_endpoint_of_envoy_is_left_out(tmp_path: Path) -> None:
    assert envoy_ports(tmp_path, REPLICAS) == ([21000, 21001], ["unix:@x"])


def test_cluster_without_replicas_keeps_its_endpoints(tmp_path: Path) -> None:
    assert envoy_ports(tmp_path, {}) == ([9, 9, 9], [])


def test_lost_server_of_haproxy_is_disabled(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text("backend b\n mode http\n server a 10.0.0.1:80\n server b abns@x\n use-server b if TRUE\n")
    source = haproxy.rewrite(read_haproxy([str(file)], Diagnostics()), places(tmp_path, REPLICAS))
    assert "server a 127.0.0.1:21000\n" in source.text
    assert "server b 127.0.0.1:9 disabled\n" in source.text
    assert lost(source) == ["server b"]


def test_lost_server_of_nginx_is_down(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(
        "upstream u { server 10.0.0.1; server unix:x; } server { listen 80; location / { proxy_pass http://u; } }"
    )
    source = nginx.rewrite(read_nginx(str(file), Diagnostics()), places(tmp_path, REPLICAS))
    assert re.findall(r"server (127\S*.*);", source.text) == ["127.0.0.1:21000", "127.0.0.1:9 down"]
    assert lost(source) == ["server unix:x"]

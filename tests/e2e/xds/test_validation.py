"""Envoy accepts the resources that lbctl builds, and rejects each message that lbctl reports as broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf.message import Message

from lbctl.xds.build.nack_locator import message_of
from lbctl.xds.resource import CDS, EDS, LDS, RDS
from tests.support.broken_xds import ANY, BROKEN, broken_message, built_resources
from tests.support.envoy import validate_file
from tests.support.xds_secrets import built, issued_files


@pytest.mark.parametrize(("kind", "name", "wrong", "words", "path"), BROKEN)
def test_envoy_rejects_the_broken_message_too(
    kind: str, name: str, wrong: Callable[[Any], None], words: str, path: tuple[str, ...], tmp_path: Path
) -> None:
    broken, _ = broken_message(kind, name, wrong)
    assert envoy_error(tmp_path, {(kind, name): broken}) != ""


def test_envoy_accepts_the_built_resources(tmp_path: Path) -> None:
    assert envoy_error(tmp_path, {}) == ""


def test_envoy_accepts_listeners_and_clusters_with_secrets(tmp_path: Path) -> None:
    resources = built(issued_files(tmp_path / "pki")).resources(ANY)
    bootstrap = bootstrap_pb2.Bootstrap(
        node={"id": "n", "cluster": "c"},
        dynamic_resources={
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
            }
        },
        static_resources={
            "listeners": [message_of(item) for item in resources.of(LDS).values()],
            "clusters": [_control_plane(), *(message_of(item) for item in resources.of(CDS).values())],
        },
    )
    assert validation_error(tmp_path, bootstrap) == ""


def envoy_error(directory: Path, others: dict[tuple[str, str], Message]) -> str:
    """Return the error of a real Envoy for all resources, with `others` in their places; empty if it accepts them."""
    resources = built_resources()

    def messages(kind: str) -> dict[str, Any]:
        return {name: others.get((kind, name)) or message_of(item) for name, item in resources.of(kind).items()}

    bootstrap = bootstrap_pb2.Bootstrap()
    for name, cluster in messages(CDS).items():
        cluster.ClearField("eds_cluster_config")
        cluster.type = cluster_pb2.Cluster.STATIC
        cluster.load_assignment.CopyFrom(messages(EDS)[name])
        bootstrap.static_resources.clusters.append(cluster)
    for name, listener in messages(LDS).items():
        for chain in listener.filter_chains:
            manager = hcm_pb2.HttpConnectionManager()
            if chain.filters[0].typed_config.Unpack(manager):
                manager.route_config.CopyFrom(messages(RDS)[name])
                chain.filters[0].typed_config.Pack(manager)
        bootstrap.static_resources.listeners.append(listener)
    return validation_error(directory, bootstrap)


def validation_error(directory: Path, bootstrap: Message) -> str:
    """Return the error of `envoy --mode validate`. The file is binary, because JSON cannot express all errors."""
    config = directory / "envoy.pb"
    config.write_bytes(bootstrap.SerializeToString())
    result = validate_file(config)
    return "" if result.returncode == 0 else result.stderr or "refused"


def _control_plane() -> Any:
    place = {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": place}}]}]
    return cluster_pb2.Cluster(
        name="xds",
        type="STATIC",
        connect_timeout={"seconds": 1},
        load_assignment={"cluster_name": "xds", "endpoints": endpoints},
    )

"""The bootstrap of an Envoy that receives the rest of its configuration from a control plane by ADS.

It contains only settings that cannot be sent over xDS: the node's identity, the control plane's address and how to
verify it, load reporting, the maximum size of regular expressions, and the admin port if one is configured. The
bootstrap contains paths but never secrets. Envoy reads certificates in a bootstrap only once, but watches certificates
in a secrets file. With TLS, secrets files are therefore written next to the bootstrap, unless a single file is
required.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.clusters.dns.v3 import dns_cluster_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from lbctl.base.hosts import is_ip
from lbctl.ir.address import Address
from lbctl.ir.proxies import ADMIN_METADATA
from lbctl.targets.envoy.bootstrap_parts import add_limits, add_metrics
from lbctl.targets.envoy.protos import address, admin_address, duration, extension, pack, struct
from lbctl.targets.target import Bundle, File
from lbctl.targets.yaml_text import Writer

CONTROL_PLANE = "xds|lbctl"
"""Cluster of the control plane. No pool can have this name. Envoy ignores a cluster from the control plane if the
bootstrap contains a cluster with the same name."""
CA, CERTIFICATE = "xds-ca", "xds-certificate"
"""Names of the secrets for connections to the control plane and to its picker."""
_CONNECT = 1_000
_KEEPALIVE = {"interval": duration(10_000), "timeout": duration(5_000)}
_FAILOVER = {
    "consecutive_5xx": {"value": 2},
    "interval": duration(500),
    "base_ejection_time": duration(5_000),
    "max_ejection_time": duration(5_000),
    "max_ejection_percent": {"value": 100},
    "enforcing_success_rate": {"value": 0},
}
"""After two failed streams, a member is skipped for five seconds."""
_BACK_OFF = {"base_interval": duration(100), "max_interval": duration(1_000)}
"""Reconnects within one second after the control plane restarts. By default, Envoy backs off for up to 30 seconds."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How a proxy connects to a control plane.

    `ca`, `certificate` and `key` are paths on the proxy's machine; without `ca` there is no TLS. `directory` is the
    directory that contains the bootstrap and the files next to it. None means a single file; its certificates are read
    only once.
    """

    xds: Address
    """Address of the control plane."""
    node: str
    region: str = ""
    """Region of the node, or an empty string."""
    zone: str = ""
    """Zone of the node, or an empty string."""
    admin: Address | None = None
    """Address of the admin interface, or None if it is disabled."""
    metrics: Address | None = None
    """Address of the proxy's own metrics, or None if they are disabled."""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    directory: str | None = None
    standbys: tuple[Address, ...] = ()
    """Other members of the control plane, in the order in which to try them if `xds` does not respond."""


def bootstrap(joining: Joining) -> Bundle:
    """Return the bootstrap and, with TLS and a directory, the secrets files next to it."""
    files = [_file("envoy", _frame(joining))]
    if joining.ca and joining.directory is not None:
        files.append(_file(CA, _secret_response(CA, validation_context=_validation(joining))))
        if joining.certificate:
            files.append(_file(CERTIFICATE, _secret_response(CERTIFICATE, tls_certificate=_pair(joining))))
    return Bundle(tuple(files))


def _file(name: str, message: Message) -> File:
    return File(f"{name}.yaml", Writer({}).write(MessageToDict(message, preserving_proto_field_name=True))[0])


def _frame(joining: Joining) -> bootstrap_pb2.Bootstrap:
    """Return the bootstrap without the files next to it.

    Envoy becomes ready only after it has received its clusters and listeners, regardless of how long this takes. With a
    time limit, it would report that it is ready even without a listener.
    """
    locality = {key: value for key, value in (("region", joining.region), ("zone", joining.zone)) if value}
    source = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": duration(0)}
    service = {"envoy_grpc": {"cluster_name": CONTROL_PLANE, "retry_policy": {"retry_back_off": _BACK_OFF}}}
    ads = {
        "api_type": "DELTA_GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [service],
    }
    load_reports = {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": CONTROL_PLANE}}],
    }
    message = bootstrap_pb2.Bootstrap(
        node={
            "id": joining.node,
            "cluster": "lbctl",
            "locality": locality or None,
            "metadata": struct({ADMIN_METADATA: str(joining.admin)}) if joining.admin else None,
        },
        admin={"address": admin_address(joining.admin)} if joining.admin else None,
        cluster_manager={"load_stats_config": load_reports},
        dynamic_resources={"ads_config": ads, "cds_config": source, "lds_config": source},
        static_resources={"clusters": [_cluster(joining)], "secrets": _secrets(joining)},
    )
    add_limits(message, {})
    add_metrics(message, joining.metrics, joining.admin)
    return message


def _cluster(joining: Joining) -> cluster_pb2.Cluster:
    """Return the cluster of the control plane.

    A failure of the control plane or the network is detected within fifteen seconds.
    """
    options = http_protocol_options_pb2.HttpProtocolOptions(
        explicit_http_config={"http2_protocol_options": {"connection_keepalive": _KEEPALIVE}}
    )
    members = (joining.xds, *joining.standbys)
    endpoints = [
        {"priority": priority, "lb_endpoints": [{"endpoint": {"address": address(member)}}]}
        for priority, member in enumerate(members)
    ]
    return cluster_pb2.Cluster(
        name=CONTROL_PLANE,
        connect_timeout=duration(_CONNECT),
        load_assignment={"cluster_name": CONTROL_PLANE, "endpoints": endpoints},
        outlier_detection=_FAILOVER if joining.standbys else None,
        typed_extension_protocol_options={"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(options)},
        transport_socket=_socket(joining) if joining.ca else None,
        **_discovery_type(members),
    )


def _discovery_type(members: tuple[Address, ...]) -> dict[str, object]:
    if all(member.path or is_ip(member.host) for member in members):
        return {"type": "STATIC"}
    dns = dns_cluster_pb2.DnsCluster(
        dns_refresh_rate=duration(5_000),
        dns_failure_refresh_rate={"base_interval": duration(500), "max_interval": duration(2_000)},
        dns_lookup_family="V4_PREFERRED",
        all_addresses_in_single_endpoint=False,
    )
    return {"cluster_type": extension("envoy.cluster.dns", dns)}


def _socket(joining: Joining) -> dict[str, object]:
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
        "alpn_protocols": ["h2"],
    }
    if joining.directory is None:
        common["validation_context"] = _validation(joining)
        common["tls_certificates"] = [_pair(joining)] if joining.certificate else []
    else:
        common["validation_context_sds_secret_config"] = _secret_file(CA, joining.directory)
        if joining.certificate:
            common["tls_certificate_sds_secret_configs"] = [_secret_file(CERTIFICATE, joining.directory)]
    name = joining.xds.host
    sni = "" if is_ip(name) else name
    return extension("envoy.transport_sockets.tls", tls_pb2.UpstreamTlsContext(common_tls_context=common, sni=sni))


def _secrets(joining: Joining) -> list[secret_pb2.Secret]:
    """Return the secrets with which clusters from the control plane refer to the proxy's certificate.

    The picker's cluster, for example, uses them.
    """
    if not joining.ca or not joining.certificate:
        return []
    return [
        secret_pb2.Secret(name=CA, validation_context=_validation(joining)),
        secret_pb2.Secret(name=CERTIFICATE, tls_certificate=_pair(joining)),
    ]


def _secret_file(name: str, directory: str) -> dict[str, object]:
    path = {"path": posixpath.join(directory, f"{name}.yaml")}
    return {"name": name, "sds_config": {"path_config_source": path, "resource_api_version": "V3"}}


def _validation(joining: Joining) -> dict[str, object]:
    """Return how to verify the control plane's certificate.

    The certificate must be issued for the control plane's name or address; being issued by the same CA is not
    sufficient.
    """
    names = dict.fromkeys(member.host for member in (joining.xds, *joining.standbys) if member.host)
    return {
        "trusted_ca": {"filename": joining.ca},
        "match_typed_subject_alt_names": [
            {"san_type": "IP_ADDRESS" if is_ip(name) else "DNS", "matcher": {"exact": name}} for name in names
        ],
    }


def _pair(joining: Joining) -> dict[str, object]:
    return {"certificate_chain": {"filename": joining.certificate}, "private_key": {"filename": joining.key}}


def _secret_response(name: str, **content: object) -> discovery_pb2.DiscoveryResponse:
    return discovery_pb2.DiscoveryResponse(resources=[pack(secret_pb2.Secret(name=name, **content))])

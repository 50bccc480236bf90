"""The bootstrap of an Envoy that gets everything else from a control plane by ADS.

It holds what cannot come by xDS: who the node is, how the control plane is reached and checked, how large a regular
expression may be, and the admin port where one was asked for. There is no secret in it, only paths. Envoy reads the
certificates of a bootstrap once; it watches those that a file of secrets names, so with TLS such files lie beside it,
unless it has to stand alone.
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
from lbctl.targets.envoy.protos import address, duration, extension, pack
from lbctl.targets.envoy.runtime import add_limits
from lbctl.targets.envoy.text import Writer
from lbctl.targets.target import Bundle, File

_CLUSTER = "xds|lbctl"
"""No pool has such a name: Envoy ignores a cluster from a control plane that is named like one of its bootstrap."""
_CA, _CERTIFICATE = "xds-ca", "xds-certificate"
_CONNECT = 1_000
_KEEPALIVE = {"interval": duration(10_000), "timeout": duration(5_000)}
_BACK_OFF = {"base_interval": duration(100), "max_interval": duration(1_000)}
"""A control plane that is restarted is found within a second; Envoy's own choice goes up to 30."""


@dataclass(frozen=True, slots=True)
class Joining:
    """`ca`, `certificate`, `key`: where the proxy finds these files; without `ca` there is no TLS. `directory`: where
    the bootstrap will lie, with the files beside it; None: it stands alone, and its certificates are read once."""

    xds: Address
    node: str
    region: str = ""
    zone: str = ""
    admin: Address | None = None
    ca: str = ""
    certificate: str = ""
    key: str = ""
    directory: str | None = None


def bootstrap(joining: Joining) -> Bundle:
    files = [_file("envoy", _frame(joining))]
    if joining.ca and joining.directory is not None:
        files.append(_file(_CA, _secrets(_CA, validation_context=_validation(joining))))
        if joining.certificate:
            files.append(_file(_CERTIFICATE, _secrets(_CERTIFICATE, tls_certificate=_pair(joining))))
    return Bundle(tuple(files))


def _file(name: str, message: Message) -> File:
    return File(f"{name}.yaml", Writer({}).write(MessageToDict(message, preserving_proto_field_name=True))[0])


def _frame(joining: Joining) -> bootstrap_pb2.Bootstrap:
    """Envoy is not ready before it has had its clusters and listeners, however long that takes: with a limit it would
    call itself ready without a listener."""
    locality = {key: value for key, value in (("region", joining.region), ("zone", joining.zone)) if value}
    source = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": duration(0)}
    ads = {
        "api_type": "DELTA_GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [
            {"envoy_grpc": {"cluster_name": _CLUSTER, "retry_policy": {"retry_back_off": _BACK_OFF}}},
        ],
    }
    message = bootstrap_pb2.Bootstrap(
        node={"id": joining.node, "cluster": "lbctl", "locality": locality or None},
        admin={"address": address(joining.admin)} if joining.admin else None,
        dynamic_resources={"ads_config": ads, "cds_config": source, "lds_config": source},
        static_resources={"clusters": [_cluster(joining)]},
    )
    add_limits(message, {})
    return message


def _cluster(joining: Joining) -> cluster_pb2.Cluster:
    """A dead control plane, or a dead way to it, is found within fifteen seconds."""
    options = http_protocol_options_pb2.HttpProtocolOptions(
        explicit_http_config={"http2_protocol_options": {"connection_keepalive": _KEEPALIVE}}
    )
    endpoint = {"endpoint": {"address": address(joining.xds)}}
    return cluster_pb2.Cluster(
        name=_CLUSTER,
        connect_timeout=duration(_CONNECT),
        load_assignment={"cluster_name": _CLUSTER, "endpoints": [{"lb_endpoints": [endpoint]}]},
        typed_extension_protocol_options={"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(options)},
        transport_socket=_socket(joining) if joining.ca else None,
        **_kind(joining.xds),
    )


def _kind(where: Address) -> dict[str, object]:
    if where.path or is_ip(where.host):
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
        common["validation_context_sds_secret_config"] = _beside(_CA, joining.directory)
        if joining.certificate:
            common["tls_certificate_sds_secret_configs"] = [_beside(_CERTIFICATE, joining.directory)]
    name = joining.xds.host
    sni = "" if is_ip(name) else name
    return extension("envoy.transport_sockets.tls", tls_pb2.UpstreamTlsContext(common_tls_context=common, sni=sni))


def _beside(name: str, directory: str) -> dict[str, object]:
    path = {"path": posixpath.join(directory, f"{name}.yaml")}
    return {"name": name, "sds_config": {"path_config_source": path, "resource_api_version": "V3"}}


def _validation(joining: Joining) -> dict[str, object]:
    """The certificate must be for the name that the control plane is reached by, not merely from the same authority."""
    name = joining.xds.host
    wanted = {"san_type": "IP_ADDRESS" if is_ip(name) else "DNS", "matcher": {"exact": name}}
    return {
        "trusted_ca": {"filename": joining.ca},
        "match_typed_subject_alt_names": [wanted] if name else [],
    }


def _pair(joining: Joining) -> dict[str, object]:
    return {"certificate_chain": {"filename": joining.certificate}, "private_key": {"filename": joining.key}}


def _secrets(name: str, **content: object) -> discovery_pb2.DiscoveryResponse:
    return discovery_pb2.DiscoveryResponse(resources=[pack(secret_pb2.Secret(name=name, **content))])

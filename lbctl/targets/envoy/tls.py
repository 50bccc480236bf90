"""TLS to clients and to replicas.

An Envoy obtains certificates, keys and CA bundles from its `SecretSource`: files on its own machine, or secrets that a
control plane sends by name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from envoy.extensions.transport_sockets.raw_buffer.v3 import raw_buffer_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Certificate, Listener, ListenerTls
from lbctl.ir.pools import DnsDiscovery, Pool, PoolTls
from lbctl.targets.envoy.protos import BY_ADS, extension, struct

_SOCKET = "envoy.transport_sockets.tls"
_VERSIONS = {"1.2": "TLSv1_2", "1.3": "TLSv1_3"}


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The source of certificates, keys and other secrets. `pair` and `trust` return fields of a `CommonTlsContext`.

    `pair` takes the paths of a certificate and its key. `trust` takes the path of a CA bundle and further constraints
    on the certificates signed by it. `clients` takes the paths of the clients' CA bundle and its revocation lists.
    `header` takes a pool and the name of a header with a secret value, and returns an `SdsSecretConfig`.
    """

    pair: Callable[[str, str], dict[str, object]]
    trust: Callable[[str, Mapping[str, object]], dict[str, object]]
    clients: Callable[[str, str | None], dict[str, object]]
    header: Callable[[str, str], dict[str, object]]


def downstream(listener: Listener, tls: ListenerTls, certificate: Certificate, keys: SecretSource) -> dict[str, object]:
    """Return the transport socket of a filter chain.

    With `client_ca`, a client certificate is verified if the client presents one.
    """
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": _VERSIONS[tls.min_version]},
        **keys.pair(certificate.certificate, certificate.key),
        "alpn_protocols": ["h2", "http/1.1"] if listener.http2 else ["http/1.1"],
    }
    if tls.client_ca:
        common |= keys.clients(tls.client_ca, tls.client_crl)
    required = bool(tls.client_ca) and tls.client_certificate == "required"
    context = tls_pb2.DownstreamTlsContext(common_tls_context=common, require_client_certificate={"value": required})
    return extension(_SOCKET, context)


def server_names(tls: ListenerTls) -> list[tuple[Certificate, tuple[str, ...]]]:
    """Return each certificate with the SNI names of its filter chain.

    The last chain has no names: with the first certificate, it serves all names that no other chain covers. Envoy
    selects the longest matching name, so the first certificate's own hosts are listed only if another certificate's
    wildcard would match them.
    """
    first, *others = tls.certificates
    chains = [(item, item.hosts) for item in others if item.hosts]
    own = tuple(host for host in first.hosts if _covered(host, (name for _, names in chains for name in names)))
    return [*([(first, own)] if own else []), *chains, (first, ())]


def _covered(host: str, names: Iterable[str]) -> bool:
    return any(name.startswith("*.") and host.endswith(name[1:]) for name in names)


def upstream(pool: Pool, tls: PoolTls, keys: SecretSource) -> dict[str, object]:
    """Return the transport socket for connections to a pool's replicas.

    Without `ca`, the replica's certificate is not verified. With `ca`, the certificate must also contain one of the
    host names.
    """
    names = _names(pool, tls)
    common: dict[str, object] = {}
    if tls.certificate and tls.key:
        common |= keys.pair(tls.certificate, tls.key)
    if tls.ca:
        sans = [{"san_type": "DNS", "matcher": {"exact": name}} for name in names]
        common |= keys.trust(tls.ca, {"match_typed_subject_alt_names": sans} if sans else {})
    if pool.protocol != "http1":
        common["alpn_protocols"] = ["h2"]
    sni = names[0] if len(names) == 1 else ""
    return extension(_SOCKET, tls_pb2.UpstreamTlsContext(common_tls_context=common, sni=sni))


def for_checks(criteria: Mapping[str, str | bool]) -> dict[str, object]:
    """Return a socket without TLS, for health checks that select it by `criteria`.

    No replica has these criteria, so requests never use it.
    """
    socket = extension("envoy.transport_sockets.raw_buffer", raw_buffer_pb2.RawBuffer())
    return {"name": "checks", "match": struct(criteria), "transport_socket": socket}


def _names(pool: Pool, tls: PoolTls) -> list[str]:
    """Return the server names of a pool: the configured name, or else its replicas' host names.

    The list is empty if any replica has only an IP address.
    """
    if tls.server_name:
        return [tls.server_name]
    replica_hosts = {item.address.host for item in pool.replicas}
    hosts = {pool.discovery.name} if isinstance(pool.discovery, DnsDiscovery) else replica_hosts
    return sorted(hosts) if all(host and not is_ip(host) for host in hosts) else []


def _pair_files(certificate: str, key: str) -> dict[str, object]:
    pair = {"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}
    return {"tls_certificates": [pair]}


def _authority_file(authority: str, constraints: Mapping[str, object]) -> dict[str, object]:
    return {"validation_context": {"trusted_ca": {"filename": authority}, **constraints}}


def _clients_files(authority: str, crl: str | None) -> dict[str, object]:
    return _authority_file(authority, {"crl": {"filename": crl}} if crl else {})


def _clients_secret(authority: str, crl: str | None) -> dict[str, object]:
    return {"validation_context_sds_secret_config": _secret(clients_name(authority, crl))}


def _pair_secret(certificate: str, _key: str) -> dict[str, object]:
    return {"tls_certificate_sds_secret_configs": [_secret(pair_name(certificate))]}


def _authority_secret(authority: str, constraints: Mapping[str, object]) -> dict[str, object]:
    secret = _secret(authority_name(authority))
    if not constraints:
        return {"validation_context_sds_secret_config": secret}
    combined = {"default_validation_context": constraints, "validation_context_sds_secret_config": secret}
    return {"combined_validation_context": combined}


def _secret(name: str) -> dict[str, object]:
    return {"name": name, "sds_config": BY_ADS}


def pair_name(certificate: str) -> str:
    """Return the secret name for a certificate and its key."""
    return f"certificate:{certificate}"


def authority_name(authority: str) -> str:
    """Return the secret name for a CA bundle."""
    return f"ca:{authority}"


def clients_name(authority: str, crl: str | None) -> str:
    """Return the secret name for the clients' CA bundle and its revocation lists."""
    return f"{authority_name(authority)} crl:{crl}" if crl else authority_name(authority)


def header_name(pool: str, header: str) -> str:
    """Return the name of the secret that contains a header's value."""
    return f"header:{pool}/{header}"


def header_file(pool: str, header: str, form: str) -> str:
    """Return the name of the file that contains such a secret. Envoy requires a separate file for each secret."""
    return f"envoy-upstream-{pool}-{header}.{form}"


def _header_secret(pool: str, header: str) -> dict[str, object]:
    return _secret(header_name(pool, header))


def files(directory: str, form: str) -> SecretSource:
    """Return the secret source for an Envoy that reads files. Files with secret header values are in `directory`."""

    def header_source(pool: str, header: str) -> dict[str, object]:
        path = posixpath.join(directory, header_file(pool, header, form))
        source = {"path_config_source": {"path": path}, "resource_api_version": "V3"}
        return {"name": header_name(pool, header), "sds_config": source}

    return SecretSource(_pair_files, _authority_file, _clients_files, header_source)


SECRETS = SecretSource(_pair_secret, _authority_secret, _clients_secret, _header_secret)

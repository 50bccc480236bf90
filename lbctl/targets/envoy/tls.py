"""TLS on both sides. Files are named by path; Envoy reads them."""

from __future__ import annotations

from collections.abc import Iterable

from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from lbctl.ir.listeners import Certificate, Listener, ListenerTls
from lbctl.ir.pools import DnsDiscovery, Pool, PoolTls
from lbctl.targets.envoy.wire import extension, is_ip

_SOCKET = "envoy.transport_sockets.tls"
_VERSIONS = {"1.2": "TLSv1_2", "1.3": "TLSv1_3"}


def downstream(listener: Listener, tls: ListenerTls, certificate: Certificate) -> dict[str, object]:
    """The transport socket of a filter chain. With `client_ca`, a certificate that is shown must be good."""
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": _VERSIONS[tls.min_version]},
        "tls_certificates": [_pair(certificate.certificate, certificate.key)],
        "alpn_protocols": ["h2", "http/1.1"] if listener.http2 else ["http/1.1"],
    }
    if tls.client_ca:
        common["validation_context"] = {"trusted_ca": {"filename": tls.client_ca}}
    required = bool(tls.client_ca) and tls.client_certificate == "required"
    context = tls_pb2.DownstreamTlsContext(common_tls_context=common, require_client_certificate={"value": required})
    return extension(_SOCKET, context)


def server_names(tls: ListenerTls) -> list[tuple[Certificate, tuple[str, ...]]]:
    """Each certificate with the SNI names of its chain; without names: every other one, which is the first's part.

    Envoy takes the longest name that fits, so the first certificate's own hosts are named only where another's wildcard
    would take them.
    """
    first, *others = tls.certificates
    chains = [(item, item.hosts) for item in others if item.hosts]
    own = tuple(host for host in first.hosts if _covered(host, (name for _, names in chains for name in names)))
    return [*([(first, own)] if own else []), *chains, (first, ())]


def _covered(host: str, names: Iterable[str]) -> bool:
    return any(name.startswith("*.") and host.endswith(name[1:]) for name in names)


def upstream(pool: Pool, tls: PoolTls) -> dict[str, object]:
    """Without `ca` the replica's certificate is not looked at. With it, one of the names must be right too."""
    names = _names(pool, tls)
    common: dict[str, object] = {}
    if tls.certificate and tls.key:
        common["tls_certificates"] = [_pair(tls.certificate, tls.key)]
    if tls.ca:
        validation: dict[str, object] = {"trusted_ca": {"filename": tls.ca}}
        if names:
            validation["match_typed_subject_alt_names"] = [
                {"san_type": "DNS", "matcher": {"exact": name}} for name in names
            ]
        common["validation_context"] = validation
    if pool.protocol != "http1":
        common["alpn_protocols"] = ["h2"]
    sni = names[0] if len(names) == 1 else ""
    return extension(_SOCKET, tls_pb2.UpstreamTlsContext(common_tls_context=common, sni=sni))


def _names(pool: Pool, tls: PoolTls) -> list[str]:
    """The one that is given, else those of the replicas; none where one of them has an address alone."""
    if tls.server_name:
        return [tls.server_name]
    found = {pool.discovery.name} if isinstance(pool.discovery, DnsDiscovery) else set()
    found |= {item.address.host for item in pool.replicas}
    return sorted(found) if all(host and not is_ip(host) for host in found) else []


def _pair(chain: str, key: str) -> dict[str, object]:
    return {"certificate_chain": {"filename": chain}, "private_key": {"filename": key}}

"""TLS for connections to other pickers, whose certificates are issued by the same authority."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from lbctl.ir.proxies import ServerTls


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The credentials for connecting to other pickers."""

    credentials: grpc.ChannelCredentials
    name: str
    """Name that the other pickers' certificates must contain; if it is empty, they must contain the IP address at which
    the picker listens."""

    @classmethod
    def of(cls, tls: ServerTls | None) -> PeerTls | None:
        """Return the picker's credentials from these files; None if its connections do not use mutual TLS.

        Pods share one certificate, which cannot contain their IP addresses. Therefore, if the picker's own certificate
        does not contain an IP address, the other pickers' certificates must contain this certificate's first DNS name.
        """
        if tls is None or tls.client_ca is None:
            return None
        authority, key, certificate = (Path(name).read_bytes() for name in (tls.client_ca, tls.key, tls.certificate))
        return cls(grpc.ssl_channel_credentials(authority, key, certificate), _shared_name(certificate))

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel to the picker at this address."""
        options = (("grpc.ssl_target_name_override", self.name),) if self.name else ()
        return grpc.aio.secure_channel(address, self.credentials, options)


def _shared_name(certificate: bytes) -> str:
    """Return the first DNS name in a certificate that contains no IP addresses; otherwise return an empty string."""
    from cryptography import x509

    try:
        extensions = x509.load_pem_x509_certificates(certificate)[0].extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return ""
    if names.get_values_for_type(x509.IPAddress):
        return ""
    return next((name for name in names.get_values_for_type(x509.DNSName) if not name.startswith("*")), "")

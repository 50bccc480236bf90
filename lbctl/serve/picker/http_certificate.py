"""TLS of the picker's HTTP server beyond loopback, where Envoys of other machines show client certificates."""

from __future__ import annotations

import ssl
from contextlib import suppress

from lbctl.ir.proxies import ServerTls


class HttpCertificate:
    """The TLS of a server. `context` is None where connections are plain."""

    def __init__(self, tls: ServerTls | None) -> None:
        """`tls` has files that were read as credentials of gRPC."""
        self._tls = tls
        self.context = (
            None if tls is None else ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
        )
        if self.context is not None:
            self.context.minimum_version = ssl.TLSVersion.TLSv1_2
            self.context.verify_mode = ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE
        self._load()

    def renew(self) -> None:
        """Read the files again. Where they are not usable, the certificate before stays; gRPC logs that."""
        with suppress(OSError):
            self._load()

    def _load(self) -> None:
        if self.context is not None and self._tls is not None:
            self.context.load_cert_chain(self._tls.certificate, self._tls.key)

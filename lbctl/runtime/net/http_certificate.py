"""TLS for an HTTP server whose certificate can be replaced at run time, with or without client certificates."""

from __future__ import annotations

import ssl

from lbctl.base.errors import reason_of
from lbctl.ir.proxies import ServerTls


class HttpCertificate:
    """A server's TLS settings. `context` is None if the server does not use TLS.

    A server keeps its context, but each connection uses the newest context. A certificate that does not match its key
    therefore has no effect.
    """

    def __init__(self, tls: ServerTls | None) -> None:
        """Read the files. Raises OSError if they are not usable."""
        self._tls = tls
        self.context = None if tls is None else _context(tls)
        self._newest = self.context
        if self.context is not None:
            self.context.sni_callback = self._use_newest

    def renew(self) -> str:
        """Reload the files. If the files are not usable, keep the previous ones and return the reason."""
        if self._tls is not None:
            try:
                self._newest = _context(self._tls)
            except OSError as error:
                return reason_of(error)
        return ""

    def _use_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Set a new connection's context. The method is also called if the client does not send a server name."""
        assert self._newest is not None, "this method is called by a context"
        connection.context = self._newest


def _context(tls: ServerTls) -> ssl.SSLContext:
    """Return a TLS context from these files. Raises OSError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED if tls.client_ca else ssl.CERT_NONE
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_crl:
        context.load_verify_locations(tls.client_crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return context

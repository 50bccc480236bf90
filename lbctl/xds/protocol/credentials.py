"""Reloads the server's certificate when its files change, and keeps the current one if the new files are invalid.

gRPC calls this before every handshake, from its own threads. A check costs one `stat` call per file. A rotation does
not interrupt established connections.
"""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from lbctl.base.errors import reason_of
from lbctl.compile.files import read_regular
from lbctl.ir.proxies import ServerTls

if TYPE_CHECKING:
    from lbctl.xds.protocol.revocation import Revocations, RevokedClients

_LOG = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int, int] | None, ...]
_MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file in bytes."""
_RETRY = 1.0
"""Seconds after which invalid files are reread even if their metadata is unchanged."""


class CredentialsError(Exception):
    """The files are not a valid server identity.

    The message states the reason but does not contain any part of a key.
    """


class ServerCredentials:
    """The server identity loaded from the files in `tls` (absolute paths).

    `problem` is the reason why the current files are not being used.
    """

    def __init__(self, tls: ServerTls) -> None:
        """Load the files.

        Raises CredentialsError if they are invalid, because there is no previous identity to keep.
        """
        self._tls = tls
        self._lock = threading.Lock()
        self._stamp = self._read_stamp()
        self._initial, self._revocations = self._read()
        self._pending: grpc.ServerCertificateConfiguration | None = None
        self._retry_at = math.inf
        self.problem = ""

    def server(self) -> grpc.ServerCredentials:
        """Return the gRPC credentials. If `client_ca` is set, each client must present a certificate signed by it."""
        return grpc.dynamic_ssl_server_credentials(
            self._initial,
            self._changed_configuration,  # type: ignore[arg-type]  # None means no change, which the stubs lack
            require_client_authentication=self._tls.client_ca is not None,
        )

    def interceptors(self) -> tuple[RevokedClients, ...]:
        """Return interceptors that reject calls from clients with revoked certificates; empty without `client_crl`."""
        if self._tls.client_crl is None:
            return ()
        from lbctl.xds.protocol.revocation import RevokedClients

        return (RevokedClients(self._current_revocations),)

    def _current_revocations(self) -> Revocations | None:
        self.check()
        return self._revocations

    def check(self) -> str:
        """Reload the files if they have changed, and return `problem`. Thread-safe."""
        with self._lock:
            stamp = self._read_stamp()
            if stamp != self._stamp or time.monotonic() >= self._retry_at:
                self._stamp = stamp
                self._load()
            return self.problem

    def _changed_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        self.check()
        with self._lock:
            pending, self._pending = self._pending, None
            return pending

    def _load(self) -> None:
        try:
            self._pending, self._revocations = self._read()
        except CredentialsError as error:
            self._retry_at = time.monotonic() + _RETRY
            self._set_problem(str(error))
        else:
            self._retry_at = math.inf
            self._set_problem("")

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            _LOG.error("xds: keeping the current certificate: %s", problem)
        elif self.problem and not problem:
            _LOG.warning("xds: the certificate matches its files again")
        self.problem = problem

    def _paths(self) -> tuple[Path, ...]:
        paths = (self._tls.certificate, self._tls.key, self._tls.client_ca, self._tls.client_crl)
        return tuple(Path(item) for item in paths if item is not None)

    def _read_stamp(self) -> _Stamp:
        return tuple(_stamp(path) for path in self._paths())

    def _read(self) -> tuple[grpc.ServerCertificateConfiguration, Revocations | None]:
        """Read the files before and after the check, so that the contents used are exactly the contents checked."""
        before = self._contents()
        self._check()
        if self._contents() != before:
            raise CredentialsError("the files are being written")
        certificate, key, *clients = before
        configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], *clients[:1])
        return configuration, self._read_revocations(*clients)

    def _read_revocations(self, authorities: bytes = b"", lists: bytes = b"") -> Revocations | None:
        if self._tls.client_crl is None:
            return None
        from lbctl.xds.protocol.revocation import RevocationError, read

        try:
            return read(lists, authorities)
        except RevocationError as error:
            raise CredentialsError(f"{self._tls.client_crl}: {error}") from None

    def _contents(self) -> list[bytes]:
        try:
            return [read_regular(path, _MAX_FILE_BYTES) for path in self._paths()]
        except OSError as error:
            raise CredentialsError(f"{error.filename}: {reason_of(error)}") from None

    def _check(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = f"{self._tls.certificate} and {self._tls.key}"
        try:
            context.load_cert_chain(self._tls.certificate, self._tls.key, password=_no_password)
        except ssl.SSLError as error:
            raise CredentialsError(f"{pair} do not match: {error.reason or error}") from None
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{pair} cannot be used: {error}") from None
        if self._tls.client_ca is not None:
            _check_authorities(context, self._tls.client_ca)


def _check_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise CredentialsError(f"{path} contains no certificate authority: {error}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

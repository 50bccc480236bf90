"""The server's certificate, read again whenever its files change; what stands is kept when the new files are bad.

The library asks before every handshake, from threads of its own. A look costs one `stat` a file. Connections that stand
are not touched: a rotation interrupts nobody.
"""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from pathlib import Path

import grpc

from lbctl.ir.proxies import ServerTls

_LOG = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int, int] | None, ...]
_RETRY = 1.0
"""Seconds after which bad files are read again, though nothing about them seems to have changed."""


class CredentialsError(Exception):
    """The files do not make a server's identity; the words say which and why, and hold nothing of a key."""


class Credentials:
    """The identity at `tls`, whose paths are absolute. `problem`: why the files, as they are now, are not in use."""

    def __init__(self, tls: ServerTls) -> None:
        """CredentialsError where the files are bad: there is nothing to fall back on yet."""
        self._tls = tls
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._initial = self._read()
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        self._again = math.inf
        self.problem = ""

    def server(self) -> grpc.ServerCredentials:
        """With a `client_ca` every client must show a certificate that it has signed."""
        return grpc.dynamic_ssl_server_credentials(
            self._initial,
            self._newer,  # type: ignore[arg-type]  # None stands for no change, which the stubs do not know
            require_client_authentication=self._tls.client_ca is not None,
        )

    def check(self) -> str:
        """Reads the files if they have changed; the `problem` that they now have. From any thread."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp or time.monotonic() >= self._again:
                self._stamp = stamp
                self._load()
            return self.problem

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        self.check()
        with self._lock:
            fresh, self._fresh = self._fresh, None
            return fresh

    def _load(self) -> None:
        try:
            self._fresh = self._read()
        except CredentialsError as error:
            self._again = time.monotonic() + _RETRY
            self._complain(str(error))
        else:
            self._again = math.inf
            self._complain("")

    def _complain(self, problem: str) -> None:
        if problem and problem != self.problem:
            _LOG.error("xds: the certificate stays as it was: %s", problem)
        elif self.problem and not problem:
            _LOG.warning("xds: the certificate is as its files say again")
        self.problem = problem

    def _paths(self) -> tuple[Path, ...]:
        told = (self._tls.certificate, self._tls.key, self._tls.client_ca)
        return tuple(Path(item) for item in told if item is not None)

    def _look(self) -> _Stamp:
        return tuple(_stamp(path) for path in self._paths())

    def _read(self) -> grpc.ServerCertificateConfiguration:
        """Read twice around the check, so that what was checked is what is used."""
        before = self._contents()
        self._check()
        if self._contents() != before:
            raise CredentialsError("the files are being written")
        certificate, key, *authorities = before
        return grpc.ssl_server_certificate_configuration([(key, certificate)], *authorities)

    def _contents(self) -> list[bytes]:
        try:
            return [path.read_bytes() for path in self._paths()]
        except OSError as error:
            raise CredentialsError(f"{error.filename}: {error.strerror}") from None

    def _check(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = f"{self._tls.certificate} and {self._tls.key}"
        try:
            context.load_cert_chain(self._tls.certificate, self._tls.key, password=_no_password)
        except ssl.SSLError as error:
            raise CredentialsError(f"{pair} are no pair: {error.reason or error}") from None
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{pair} cannot be used: {error}") from None
        if self._tls.client_ca is not None:
            _check_authorities(context, self._tls.client_ca)


def _check_authorities(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise CredentialsError(f"{path} holds no certificate authority: {error}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

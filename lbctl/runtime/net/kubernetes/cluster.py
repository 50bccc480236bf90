"""The address of an API server and the caller's credentials; a pod's service account is the simplest case.

A kubeconfig and a service account both result in a `Cluster`. Secrets never appear in a `repr`, and a secret is not
kept after it has been removed from its file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lbctl.base.errors import reason_of
from lbctl.base.hosts import address_of

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_TOKEN = 1 << 20


class ClusterError(Exception):
    """A cluster cannot be reached with its configuration.

    The message states the position and the reason, without any secrets.
    """


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """The caller's identity in one request."""

    authorization: str = field(default="", repr=False)
    """Value of the `Authorization` header; empty if it is not sent."""
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    """Client certificate and private key in PEM format; None if no client certificate is used."""


class ClusterCredentials(Protocol):
    """A source of credentials, which may change while the process is running."""

    async def access(self) -> CallerIdentity:
        """Return the caller's current identity. Raises ClusterError."""
        ...

    def expire(self) -> None:
        """Clear the cache, because the API server has rejected the credentials."""
        ...


@dataclass(frozen=True, slots=True)
class FixedAccess:
    """Credentials that do not change."""

    value: CallerIdentity = CallerIdentity()

    async def access(self) -> CallerIdentity:
        """Return the fixed identity."""
        return self.value

    def expire(self) -> None:
        """Do nothing, because nothing is cached."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A token in a file that is replaced by another program, such as the kubelet.

    The file is reread for each request.
    """

    path: Path
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    """Client certificate sent in addition to the token."""
    check: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    """Raises ClusterError if the file must not be read. For example, it may have become a link since the last
    request."""

    async def access(self) -> CallerIdentity:
        """Read the token. Raises ClusterError."""
        try:
            token = (await asyncio.to_thread(self._read)).strip()
        except OSError as error:
            raise ClusterError(f"the token {self.path} cannot be read: {reason_of(error)}") from None
        return CallerIdentity(bearer(token, str(self.path)), self.certificate)

    def _read(self) -> str:
        if self.check is not None:
            self.check()
        return _read_text(self.path)

    def expire(self) -> None:
        """Do nothing, because the next request rereads the file."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server and its credentials."""

    server: str
    """URL without a trailing slash."""
    ca: str | None = field(default=None, repr=False)
    """CA bundle for the server's certificate in PEM format; None for the system CAs."""
    verify: bool = True
    """Whether to verify the server's certificate."""
    server_name: str | None = None
    """Name in the server's certificate, if it differs from the host in the URL."""
    credentials: ClusterCredentials = field(default_factory=FixedAccess, repr=False)
    """Credentials from the same source compare as equal, so that a cached token survives the next read."""


def bearer(token: str, origin: str) -> str:
    """Return the value of the `Authorization` header for a token. Raises ClusterError if the text is not a token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ClusterError(f"{origin} contains no token")
    return f"Bearer {token}"


def in_cluster(directory: Path = _SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Return the current pod's cluster, based on its service account. Raises ClusterError outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port.isdecimal():
        raise ClusterError(
            "this process is not running in a pod (KUBERNETES_SERVICE_HOST is not set): set a kubeconfig"
        )
    try:
        authority = _read_text(directory / "ca.crt")
    except OSError as error:
        raise ClusterError(f"{directory / 'ca.crt'} cannot be read: {reason_of(error)}") from None
    address = address_of(host)
    where = f"[{host}]" if address is not None and address.version == 6 else host
    return Cluster(f"https://{where}:{port}", authority, credentials=TokenFile(directory / "token"))


def _read_text(path: Path) -> str:
    with path.open("rb") as opened:
        return opened.read(_MAX_TOKEN).decode("utf-8", "replace")

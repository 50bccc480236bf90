"""Where an API server is and how one identifies oneself to it; the service account of a pod as the simplest case.

A kubeconfig and a service account both lead to a `Cluster`. Secrets are no part of any representation, and none is
kept longer than the file it comes from says it.
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
    """A cluster cannot be reached with what is configured. The message says where and why, and holds no secret."""


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """What identifies the caller in one request."""

    authorization: str = field(default="", repr=False)
    """The value of the header Authorization; empty: none is sent."""
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    """The client certificate and its private key in PEM; None: none is shown."""


class ClusterCredentials(Protocol):
    """A source of access, which may change while the process runs."""

    async def access(self) -> CallerIdentity:
        """Return what identifies the caller now. Raises ClusterError."""
        ...

    def expire(self) -> None:
        """Forget what is cached: the API server has refused it."""
        ...


@dataclass(frozen=True, slots=True)
class FixedAccess:
    """Credentials that stay as they are."""

    value: CallerIdentity = CallerIdentity()
    """What identifies the caller."""

    async def access(self) -> CallerIdentity:
        """Return the value."""
        return self.value

    def expire(self) -> None:
        """Do nothing: nothing is cached."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A token in a file that another program replaces, as the kubelet does: it is read for each request."""

    path: Path
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    """The client certificate that is shown beside the token."""
    check: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    """Raises ClusterError if the file may not be read: it may have become a link since the last request."""

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
        """Do nothing: the next request reads the file again."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server and the credentials for it."""

    server: str
    """The URL, without a / at its end."""
    ca: str | None = field(default=None, repr=False)
    """The authorities that sign the server's certificate, in PEM; None: those of the system."""
    verify: bool = True
    """Whether the server's certificate is checked."""
    server_name: str | None = None
    """The name in the server's certificate where it is not that of the URL."""
    credentials: ClusterCredentials = field(default_factory=FixedAccess, repr=False)
    """Who asks; equal where they come from the same place, so that a cached token outlives the next reading."""


def bearer(token: str, origin: str) -> str:
    """Return the header's value for a token. Raises ClusterError for a text that is no token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ClusterError(f"{origin} holds no token")
    return f"Bearer {token}"


def in_cluster(directory: Path = _SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Return the cluster of the own pod, by its service account. Raises ClusterError outside a pod."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port.isdecimal():
        raise ClusterError("this process runs in no pod (KUBERNETES_SERVICE_HOST is not set): name a kubeconfig")
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

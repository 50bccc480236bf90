"""Check that the API token is sent only to processes of trusted users on this machine.

While `serve` is not running, any user can listen on its loopback port. Therefore, the token is sent over loopback only
to a listener of this user, of root, of the owner of the token file, or of the owner of the state directory of `serve`.
With TLS, this check is unnecessary, because the certificate identifies the server.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbctl.apply.listening_sockets import listening_sockets, listening_users

if TYPE_CHECKING:
    import requests

_ROOT = 0


class UntrustedListenerError(Exception):
    """The process at the address may belong to another user. The message names the user and a remedy."""


def trusted_users(*paths: Path) -> frozenset[int]:
    """Return the IDs of the users that may receive the token: root, the current user, and the owners of these paths."""
    return frozenset({_ROOT, os.geteuid(), *_owners(paths)})


def check_port(host: str, port: int, users: frozenset[int]) -> None:
    """Raise UntrustedListenerError unless the loopback address has listeners that all belong to these users."""
    found, place = listening_users("127.0.0.1" if host.lower() == "localhost" else host, port), f"{host}:{port}"
    if found is not None and not found:
        raise UntrustedListenerError(
            f"no process is listening on {place}: start `lbctl serve`. If it runs in a container, set control.api.tls "
            "and use an https URL"
        )
    _check(found, users, place)


def guarded_session(port: int, users: frozenset[int]) -> requests.Session:
    """Return a session that sends nothing over HTTP until it has verified that one of these users owns the listener.

    Otherwise, its requests raise UntrustedListenerError.
    """
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Connection(HTTPConnection):
        def connect(self) -> None:
            before = listening_sockets(port) or set()
            super().connect()
            _check_peer(self.sock, before, users)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            self.poolmanager.pool_classes_by_scheme = {"http": Pool, "https": HTTPSConnectionPool}

    session = requests.Session()
    session.mount("http://", Adapter())
    return session


def _check_peer(connected: socket.socket, before: set[str], users: frozenset[int]) -> None:
    """Check the listener of a connection.

    `before` contains the sockets that were listening before the connection was made. A listener that existed before
    and after the connection was made must have accepted it.
    """
    host, port = connected.getpeername()[:2]
    found = listening_users(host, port)
    if found is not None:
        found = {inode: user for inode, user in found.items() if inode in before}
    _check(found, users, f"{host}:{port}")


def _check(found: dict[str, int] | None, users: frozenset[int], place: str) -> None:
    if not found:
        raise UntrustedListenerError(
            f"the system does not show which user is listening on {place}: set control.api.tls for serve, and use an "
            "https URL"
        )
    others = sorted(set(found.values()) - users)
    if others:
        names = ", ".join(map(user_name, others))
        raise UntrustedListenerError(
            f"{place} belongs to {names}, not to you, root or the owner of the state directory: if serve runs as that "
            "user, pass --fleet PATH with its control.state, or the token file of that directory"
        )


def user_name(user: int) -> str:
    """Return a user's name for a message, or the ID if the user has no name."""
    with suppress(KeyError):
        return f"the user {pwd.getpwuid(user).pw_name}"
    return f"the user with ID {user}"


def _owners(paths: Iterable[Path]) -> Iterable[int]:
    for path in paths:
        with suppress(OSError, ValueError):
            yield path.stat().st_uid

"""The connections to a Redis or Valkey server, or to the one that Sentinel says is the primary now.

Sentinels are asked without a user and a password, with the same TLS as the server.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio as client
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from lbctl.ir.proxies import Store
from lbctl.ir.store_url import parse_store_url
from lbctl.serve.state.credentials import password_of, tls_of
from lbctl.serve.state.interface import UnusableError


def connected(store: Store, ttl: float) -> Any:
    """Return a client that connects when it is used, and gives up before a lease could end."""
    url = parse_store_url(store.url)
    patience = max(0.5, ttl / 5)
    password_of(store)  # a file that cannot be read is reported at once
    network: dict[str, Any] = {"socket_timeout": patience, "socket_connect_timeout": patience, "socket_keepalive": True}
    if url.secure:
        tls_of(store)
        files = {"ssl_ca_certs": store.ca, "ssl_certfile": store.certificate, "ssl_keyfile": store.key}
        network |= {"ssl": True, **files}
    settings = {
        **network,
        "credential_provider": _Password(store) if store.password_file is not None else None,
        "decode_responses": True,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 1),
        "retry_on_error": [RedisConnectionError],
    }
    if url.kind == "redis+sentinel":
        name, *database = url.path
        options = {**network, "decode_responses": True}
        sentinels: Any = Sentinel(url.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        return sentinels.master_for(name, db=int(database[0]) if database else 0, **settings)
    ((host, port),) = url.hosts
    return client.Redis(host=host, port=port, db=int(url.path[0]) if url.path else 0, **settings)


async def disconnect(connection: Any) -> None:
    """Close the connections of a client of `connected`."""
    await connection.aclose()
    pool = connection.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        await asyncio.gather(*(sentinel.aclose() for sentinel in pool.sentinel_manager.sentinels))


class _PasswordError(UnusableError, RedisError):
    """The password cannot be read. As an error of the client it also closes the connection, which is not usable."""


class _Password(CredentialProvider):
    """The user and the password of the store's file, read for each connection: a new one counts without a restart."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, behind its user where there is one. Raises UnusableError."""
        try:
            password = password_of(self._store) or ""
            return (password,) if self._store.user is None else (self._store.user, password)
        except UnusableError as error:
            raise _PasswordError(str(error)) from None

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return what `get_credentials` returns."""
        return await asyncio.to_thread(self.get_credentials)

"""The connections to a Redis or Valkey server, or to the current primary as reported by Sentinel.

Sentinels are queried without a user name and password, using the same TLS settings as for the server. Responses are
limited in size and time.
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

from lbctl.base.bounded import size
from lbctl.ir.proxies import Store
from lbctl.ir.store_url import parse_store_url
from lbctl.store.credentials import password_of, tls_of
from lbctl.store.interface import UnusableError

MAX_ANSWER_BYTES = 48 << 20
"""Maximum size of a response."""
MAX_VALUE_BYTES = 8 << 20
"""Maximum size of a value in a response."""

_READS = 1000
"""Number of reads after which other tasks get a turn on the event loop."""


def connected(store: Store, ttl: float) -> Any:
    """Return a client that connects at first use, and whose timeouts are shorter than the lease."""
    url = parse_store_url(store.url)
    patience = max(0.5, ttl / 5)
    password_of(store)  # report an unreadable file immediately
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
        for sentinel in sentinels.sentinels:
            _bound(sentinel)
        return _bound(sentinels.master_for(name, db=int(database[0]) if database else 0, **settings))
    ((host, port),) = url.hosts
    return _bound(client.Redis(host=host, port=port, db=int(url.path[0]) if url.path else 0, **settings))


def _bound(redis: Any) -> Any:
    """Limit what the client's connections read, and return the client."""
    pool = redis.connection_pool
    pool.connection_class = type("BoundedConnection", (_BoundedConnection, pool.connection_class), {})
    return redis


class _BoundedConnection:
    """A connection that is closed if a response is too large."""

    _reader: Any

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[misc]
        self._reader = _BoundedReader(self._reader)

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read one response."""
        if self._reader is not None:
            self._reader.size = 0
        return await super().read_response(*arguments, **options)  # type: ignore[misc]


class _BoundedReader:
    """The stream of a connection. The stream raises a client error if a response or a value is too large.

    Received data is read without a pause, so other tasks are given a turn periodically.
    """

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.size = 0
        """Bytes of the response read so far."""
        self._reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, count: int) -> bytes:
        """Return up to `count` bytes of the received data."""
        return await self._counted(await self._stream.read(count))

    async def readexactly(self, count: int) -> bytes:
        """Return exactly `count` bytes."""
        if not 0 <= count <= MAX_VALUE_BYTES + len(b"\r\n"):
            raise RedisConnectionError(f"a value of more than {size(MAX_VALUE_BYTES)}")
        return await self._counted(await self._stream.readexactly(count))

    async def readline(self) -> bytes:
        """Return a line."""
        try:
            return await self._counted(await self._stream.readline())
        except ValueError:
            raise RedisConnectionError("an unterminated line") from None

    async def _counted(self, piece: bytes) -> bytes:
        self._reads += 1
        if self._reads % _READS == 0:
            await asyncio.sleep(0)
        self.size += len(piece)
        if self.size > MAX_ANSWER_BYTES:
            raise RedisConnectionError(f"a response of more than {size(MAX_ANSWER_BYTES)}")
        return piece


async def disconnect(connection: Any) -> None:
    """Close the connections of a client of `connected`."""
    await connection.aclose()
    pool = connection.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        await asyncio.gather(*(sentinel.aclose() for sentinel in pool.sentinel_manager.sentinels))


class _PasswordError(UnusableError, RedisError):
    """The password file cannot be read.

    The exception is a client error, so that the unusable connection is also closed.
    """


class _Password(CredentialProvider):
    """The user and the password from the store's file.

    The file is read for each connection, so that a new password takes effect without a restart.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, preceded by the user if there is one. Raises UnusableError."""
        try:
            password = password_of(self._store) or ""
            return (password,) if self._store.user is None else (self._store.user, password)
        except UnusableError as error:
            raise _PasswordError(str(error)) from None

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the same as `get_credentials`."""
        return await asyncio.to_thread(self.get_credentials)

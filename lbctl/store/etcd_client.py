"""The calls to etcd's JSON gateway needed by a store. Keys and values are text; numbers are encoded as strings.

Responses are limited in size, depth and time, and their fields must have etcd's types. All other responses are treated
as errors.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp

from lbctl.base.bounded import lines, whole
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, member, parse_object, records
from lbctl.ir.proxies import Store
from lbctl.ir.store_url import parse_store_url
from lbctl.runtime.net import http_client
from lbctl.store.credentials import password_of, tls_of
from lbctl.store.interface import StoreError, StoreUnreachableError, UnusableError

_USER = "root"
_MAX_SHOWN = 200
"""Maximum number of characters of a response included in a message."""
MAX_ANSWER_BYTES = 48 << 20
"""Maximum size of a response in bytes."""
MAX_MESSAGE_BYTES = 16 << 20
"""Maximum size of a watch message in bytes."""
_REFUSED = ("authentication failed", "permission denied", "user name is empty", "authentication is not enabled")
WATCH_TIMEOUT = 60.0
"""Seconds after which a watch ends, so that a slow server does not block it."""
_EXPIRED = "invalid auth token"
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_T = TypeVar("_T")
Answer = Mapping[str, Any]


class Row(NamedTuple):
    """A key and its value."""

    key: str
    """Key, including the store's prefix."""
    value: str
    """Value; empty if there is none."""
    revision: str
    """Revision of the last change."""


Events = list[tuple[str, Row]]
"""Type and row of each event."""


class EtcdClient:
    """One member's connections to etcd. The connections are opened at first use, in the event loop that uses them."""

    def __init__(self, store: Store, patience: float) -> None:
        """Create the client without opening a connection. `patience`: timeout for a call, in seconds."""
        url = parse_store_url(store.url)
        self.hosts = url.places
        """Servers, for people."""
        self._servers = deque(url.places.split(","))
        """The servers; the first one is queried."""
        self._protocol = "https" if url.secure else "http"
        self._tls = tls_of(store) if url.secure else None
        self._store = store
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._token = ""

    async def call(self, path: str, body: Mapping[str, Any], read: Callable[[Answer], _T]) -> _T:
        """Return the result of `read` for the response.

        `read` must raise ValueError if the response does not come from etcd.

        Raises UnusableError, StoreUnreachableError, and StoreError for every other failure.
        """
        answer = await self._answer(path, body)
        try:
            return read(answer)
        except ValueError as error:
            problem = f"did not respond like an etcd server: {reason_of(error)}"
            raise self._unreachable(self._servers[0], problem) from None

    async def _answer(self, path: str, body: Mapping[str, Any]) -> Answer:
        if self._store.password_file is not None and not self._token:
            await self._authenticate()
        try:
            return await self._post(path, body)
        except StoreError as error:
            if _EXPIRED not in str(error) or not self._token:
                raise
        await self._authenticate()
        return await self._post(path, body)

    async def watch(
        self, first: str, last: str, revision: int, silence: float
    ) -> AsyncGenerator[list[tuple[str, Row]]]:
        """Yield the events since that revision for keys from `first` (inclusive) to `last` (exclusive).

        Ends after `silence` seconds without events, and after `WATCH_TIMEOUT`. Raises StoreError.
        """
        request = {"key": encoded(first), "range_end": encoded(last), "start_revision": str(revision)}
        timeout = aiohttp.ClientTimeout(total=WATCH_TIMEOUT, sock_connect=self._patience, sock_read=silence)
        server = self._servers[0]
        try:
            async with (
                self._opened().post(
                    self._address(server, "watch"),
                    json={"create_request": request},
                    headers=self._headers(),
                    timeout=timeout,
                    ssl=self._tls or True,
                ) as answer,
                aclosing(lines(answer.content.iter_any(), MAX_MESSAGE_BYTES)) as messages,
            ):
                async for line in messages:
                    message = parse_object(line)
                    result: Answer = member(message, "result", dict)
                    if "error" in message or result.get("canceled"):
                        raise self._unreachable(server, f"ended the watch: {str(message)[:_MAX_SHOWN]}")
                    yield [(member(event, "type", str), _row(event, "kv")) for event in records(result, "events")]
        except TimeoutError:
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._silent(server, error) from None

    async def close(self) -> None:
        """Close the connections. Pending and later calls raise StoreUnreachableError."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _authenticate(self) -> None:
        self._token = ""
        password = await asyncio.to_thread(password_of, self._store)
        answer = await self._post("auth/authenticate", {"name": self._store.user or _USER, "password": password})
        token = str(answer.get("token") or "")
        if not token.isascii() or not token.isprintable():
            raise self._unreachable(self._servers[0], "did not return a token")
        self._token = token

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Try the servers one after another until a connection is established. Raises StoreError."""
        for _ in range(len(self._servers) - 1):
            with suppress(_NotConnectedError):
                return await self._ask(path, body)
        return await self._ask(path, body)

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=self._patience)
        server = self._servers[0]
        try:
            async with self._opened().post(
                self._address(server, path),
                data=io.BytesIO(json.dumps(body).encode()),
                headers={"content-type": "application/json", **self._headers()},
                timeout=timeout,
                ssl=self._tls or True,
            ) as answer:
                content = parse_object(await whole(answer.content.iter_any(), MAX_ANSWER_BYTES))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._silent(server, error) from None
        if answer.status != 200:
            raise self._refused(server, answer.status, content)
        return content

    def _headers(self) -> dict[str, str]:
        return {"authorization": self._token} if self._token else {}

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise StoreUnreachableError(f"etcd {self.hosts}: the client is closed")
        if self._session is None:
            self._session = http_client.session(keep_alive_probes=True)
        return self._session

    def _address(self, server: str, path: str) -> str:
        return f"{self._protocol}://{server}/v3/{path}"

    def _silent(self, server: str, error: Exception) -> StoreError:
        connected = not isinstance(error, aiohttp.ClientConnectorError)
        return self._unreachable(server, f"is not responding: {reason_of(error)}", connected=connected)

    def _unreachable(self, server: str, problem: str, *, connected: bool = True) -> StoreError:
        """Return the error, and switch to the next server unless another call has already done so."""
        if self._servers[0] == server:
            self._servers.rotate(-1)
        reason = f"etcd {server} {problem}"
        return StoreUnreachableError(reason) if connected else _NotConnectedError(reason)

    def _refused(self, server: str, status: int, content: object) -> StoreError:
        message = str(content.get("message") or content.get("error")) if isinstance(content, dict) else str(content)
        problem = f"refuses: {message}"
        if any(text in message for text in _REFUSED):
            return UnusableError(f"etcd {server} {problem}")
        return self._unreachable(server, problem) if status in (503, 504) else StoreError(f"etcd {server} {problem}")


class _NotConnectedError(StoreUnreachableError):
    """The connection failed: the server has not received the request, so another server may be tried."""


def rows(holder: Answer, key: str = "kvs") -> list[Row]:
    """Return the rows of a response. Raises ValueError."""
    return [_parsed(item) for item in records(holder, key)]


def rows_of_responses(answer: Answer) -> list[Row]:
    """Return the rows of all ranges in a transaction's response. Raises ValueError."""
    return [row for each in records(answer, "responses") for row in rows(member(each, "response_range", dict))]


def revision(answer: Answer) -> int:
    """Return the revision of a response. Raises ValueError."""
    return int(member(member(answer, "header", dict), "revision", str))


def _row(holder: Answer, key: str) -> Row:
    return _parsed(member(holder, key, dict))


def _parsed(item: Answer) -> Row:
    key, value = (member(item, name, str) for name in ("key", "value"))
    if not _BASE64.fullmatch(key) or not _BASE64.fullmatch(value):
        raise InvalidJsonError("a key or a value is not base64")
    return Row(_decoded(key), _decoded(value), str(int(member(item, "mod_revision", str))))


def encoded(text: str) -> str:
    """Encode text for the gateway."""
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()


def _decoded(text: str) -> str:
    """Decode text from the gateway."""
    return base64.b64decode(text).decode(errors="surrogateescape")


def end_of(prefix: str) -> str:
    """Return the first key after all keys with the prefix, which must end with an ASCII character below DEL."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)

"""The calls of etcd's JSON gateway that a store needs. Keys and values are text; numbers come as strings."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from lbctl.base.errors import reason_of
from lbctl.ir.proxies import Store
from lbctl.ir.store_url import parse_store_url
from lbctl.serve.state.credentials import password_of, tls_of
from lbctl.serve.state.interface import StoreError, StoreUnreachableError, UnusableError

_USER = "root"
_LONGEST_LINE = 4 * 1024 * 1024
"""Bytes of one message of a watch."""
_REFUSED = ("authentication failed", "permission denied", "user name is empty", "authentication is not enabled")
_EXPIRED = "invalid auth token"
Rows = list[dict[str, Any]]


class EtcdClient:
    """One member's connections to etcd. They are opened when they are used, in the event loop that uses them."""

    def __init__(self, store: Store, patience: float) -> None:
        """`patience`: seconds that a call waits for its answer."""
        url = parse_store_url(store.url)
        self.hosts = url.places
        """The servers, for people."""
        self._servers = deque(url.places.split(","))
        """The servers; the first one is asked."""
        self._protocol = "https" if url.secure else "http"
        self._tls = tls_of(store) if url.secure else None
        self._store = store
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._token = ""

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises UnusableError, StoreUnreachableError, and StoreError for every other refusal."""
        if self._store.password_file is not None and not self._token:
            await self._authenticate()
        try:
            return await self._post(path, body)
        except StoreError as error:
            if _EXPIRED not in str(error) or not self._token:
                raise
        await self._authenticate()
        return await self._post(path, body)

    async def watch(self, first: str, last: str, revision: int, silence: float) -> AsyncIterator[Rows]:
        """Yield the events of keys from `first` to before `last` since that revision.

        Ends after `silence` seconds without any. Raises StoreError.
        """
        request = {"key": encoded(first), "range_end": encoded(last), "start_revision": str(revision)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._patience, sock_read=silence)
        server = self._servers[0]
        try:
            async with self._opened().post(
                self._address(server, "watch"),
                json={"create_request": request},
                headers=self._headers(),
                timeout=timeout,
            ) as answer:
                async for line in answer.content:
                    message = json.loads(line)
                    if "error" in message or message.get("result", {}).get("canceled"):
                        raise self._unreachable(server, f"has ended the watch: {message}")
                    yield message["result"].get("events", [])
        except TimeoutError:
            return
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            raise self._silent(server, error) from None

    async def close(self) -> None:
        """Close the connections. Calls that go on raise StoreUnreachableError, and so do later ones."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _authenticate(self) -> None:
        self._token = ""
        password = await asyncio.to_thread(password_of, self._store)
        answer = await self._post("auth/authenticate", {"name": self._store.user or _USER, "password": password})
        self._token = str(answer["token"])

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the servers one after the other until one is connected. Raises StoreError."""
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
            ) as answer:
                content = json.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._silent(server, error) from None
        if answer.status != 200:
            raise self._refused(server, answer.status, content)
        return dict(content)

    def _headers(self) -> dict[str, str]:
        return {"authorization": self._token} if self._token else {}

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise StoreUnreachableError(f"etcd {self.hosts}: the client is closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=_LONGEST_LINE)
        return self._session

    def _address(self, server: str, path: str) -> str:
        return f"{self._protocol}://{server}/v3/{path}"

    def _silent(self, server: str, error: Exception) -> StoreError:
        connected = not isinstance(error, aiohttp.ClientConnectorError)
        return self._unreachable(server, f"does not answer: {reason_of(error)}", connected=connected)

    def _unreachable(self, server: str, problem: str, *, connected: bool = True) -> StoreError:
        """Return the error, and ask the next server from now on, unless another call has done so for this one."""
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
    """No connection was made: the server has not seen the request, and another one may be asked."""


def encoded(text: str) -> str:
    """Return the text as the gateway takes it."""
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()


def decoded(text: str) -> str:
    """Return what `encoded` has encoded."""
    return base64.b64decode(text).decode(errors="surrogateescape")


def end_of(prefix: str) -> str:
    """Return the first key behind all keys with the prefix, which ends with an ASCII character below DEL."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)

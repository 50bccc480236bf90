"""Requests to an API server, for JSON objects and for watch events.

The cluster and its credentials are reread for each request, so that rotation (of a kubeconfig, a pod's token, or its
CAs) does not require a restart. Connections are reused until the cluster or its credentials change. A token is sent
only over TLS, except to a proxy on loopback. Redirects are not followed, and proxy settings from the environment are
not used. Errors describe the request and the server's response, and never contain a credential. Responses are limited
in size, depth and time.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from lbctl.base.bounded import TooLargeError, lines, whole
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, parse_object
from lbctl.base.hosts import is_loopback
from lbctl.runtime.net import http_client
from lbctl.runtime.net.kubernetes.cluster import CallerIdentity, Cluster, ClusterError

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""Media types for objects of which only names and labels are needed; a node's status, for example, is many times
larger."""
CONNECT_TIMEOUT = 5.0
TIMEOUT = 15.0
"""Timeout in seconds for connecting, and for an entire response other than a watch."""
_TIME_TOLERANCE = 2.0
"""Maximum delay, in seconds, between the time stated in a response and the response's arrival."""
MAX_ANSWER_BYTES = 32 << 20
"""Maximum size of a response in bytes, such as a page of a list."""
MAX_EVENT_BYTES = 8 << 20
"""Maximum size of a watch event in bytes. An object in etcd is at most 1.5 MiB."""
MAX_WAIT = 30.0
"""Maximum wait accepted from the server, in seconds."""
_MAX_MESSAGE = 300
_UNAUTHORIZED = 401


class ApiError(Exception):
    """An unsuccessful response from the API server.

    `status` is the HTTP status or the code in a watch's ERROR event. `reason` is the reason in the Status object, for
    example Expired or Forbidden. `retry_after` is the number of seconds that the server asks the client to wait; 0 if
    none.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class ApiClient:
    """A client for the cluster that `load` returns. It must be used and closed on the same event loop."""

    def __init__(self, load: Callable[[], Cluster], patience: float = TIMEOUT) -> None:
        """Create a client without sending anything.

        `load` returns the cluster; it may read files and raise ClusterError.

        `patience`: timeout in seconds for an entire response other than a watch.
        """
        self._load = load
        self._patience = patience
        self._started_at: float | None = None
        """Server time, in seconds since the epoch, at which this machine's monotonic clock was 0."""
        self._cluster: Cluster | None = None
        self._access: CallerIdentity | None = None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._preparing = asyncio.Lock()
        self._tls: ssl.SSLContext | None = None

    async def get(self, path: str, query: Mapping[str, str] | None = None, accept: str = JSON) -> dict[str, Any]:
        """Return the object at `path`. Raises ApiError, ClusterError."""
        return await self.request("GET", path, query, accept=accept)

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """Return the object in the server's response. Raises ApiError, ClusterError."""
        timeout = aiohttp.ClientTimeout(total=self._patience, sock_connect=min(CONNECT_TIMEOUT, self._patience))
        async with self._response(method, path, query, body, accept, timeout, content_type) as response:
            return _object(await _whole(response))

    async def patch(
        self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None, accept: str = JSON
    ) -> dict[str, Any]:
        """Apply a merge patch (RFC 7386) to the object at `path`, and return it. Raises ApiError, ClusterError."""
        return await self.request("PATCH", path, query, body, accept, MERGE_PATCH)

    @property
    def server_time(self) -> float:
        """Return the server's time in seconds since the epoch, as stated in its responses.

        Before the first response, this machine's clock is used.
        """
        return time.time() if self._started_at is None else self._started_at + time.monotonic()

    async def watch(
        self, path: str, query: Mapping[str, str], silence: float, total: float, accept: str = JSON
    ) -> AsyncGenerator[dict[str, Any] | None]:
        """Yield None once the watch is open, and then each event until the server ends the watch.

        Raises ApiError or ClusterError, including if nothing is received for `silence` seconds and after `total`
        seconds.
        """
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        async with self._response("GET", path, {**query, "watch": "1"}, None, accept, timeout) as response:
            yield None
            async with aclosing(lines(response.content.iter_any(), MAX_EVENT_BYTES)) as events:
                async for line in events:
                    yield _object(line)

    async def close(self) -> None:
        """Close all connections. Further requests raise ClusterError."""
        self._closed = True
        await self._end_session()

    async def _end_session(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None,
        accept: str, timeout: aiohttp.ClientTimeout, content_type: str = JSON,
    ) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
        async with self._preparing:
            cluster, access, session = await self._prepared()
        headers = {"Accept": accept, **({"Authorization": access.authorization} if access.authorization else {})}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with session.request(
                method, cluster.server + path, params=query or {}, json=body, headers=headers, timeout=timeout,
                allow_redirects=False, ssl=self._tls or True, server_hostname=cluster.server_name,
            ) as response:  # fmt: skip
                self._note_time(response.headers.get("Date", ""))
                if response.status == _UNAUTHORIZED:
                    cluster.credentials.expire()
                if response.status not in {200, 201}:
                    raise _error_of(response, await _whole(response))
                yield response
        except TimeoutError:
            raise ClusterError(f"{cluster.server} is not responding") from None
        except TooLargeError as error:
            raise ClusterError(f"{cluster.server} sent {error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ClusterError(f"{cluster.server}: {_network_reason(error)}") from None

    def _note_time(self, date: str) -> None:
        """Record the server's time.

        Responses state it in whole seconds, so the response that implies the latest time is the most accurate.
        """
        with suppress(ValueError, TypeError, OverflowError):
            started_at = parsedate_to_datetime(date).timestamp() - time.monotonic()
            if self._started_at is None or not 0.0 <= self._started_at - started_at <= _TIME_TOLERANCE:
                self._started_at = started_at

    async def _prepared(self) -> tuple[Cluster, CallerIdentity, aiohttp.ClientSession]:
        """Return the current cluster and access, and a session that uses their TLS settings."""
        cluster = await asyncio.to_thread(self._load)
        if cluster == self._cluster:
            cluster = self._cluster  # keeps the token cached by its credentials
        access = await cluster.credentials.access()
        parts = urlsplit(cluster.server)
        if parts.scheme == "http" and access.authorization and not is_loopback(parts.hostname or ""):
            raise ClusterError(f"{cluster.server}: credentials are not sent without TLS")
        changed = cluster != self._cluster or self._access is None or self._access.certificate != access.certificate
        if changed or self._session is None:
            await self._end_session()
            self._tls = await asyncio.to_thread(_tls, cluster, access) if parts.scheme == "https" else None
            if self._closed:
                raise ClusterError(f"{cluster.server}: the client is closed")
            self._session = http_client.session(keep_alive_probes=True)
        self._cluster, self._access = cluster, access
        assert self._session is not None
        return cluster, access, self._session


def _tls(cluster: Cluster, access: CallerIdentity) -> ssl.SSLContext:
    """Return the TLS settings. Raises ClusterError for an invalid certificate or key."""
    try:
        context = ssl.create_default_context(cadata=cluster.ca)
        if not cluster.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if access.certificate is not None:
            with tempfile.TemporaryDirectory(prefix="lbctl-") as directory:  # mode 0700; OpenSSL reads only files
                pair = Path(directory) / "pair.pem"
                pair.write_text("\n".join(access.certificate))
                context.load_cert_chain(pair)
    except (ssl.SSLError, ValueError):
        raise ClusterError(f"{cluster.server}: its CA certificate or the client certificate is not valid PEM") from None
    return context


def _network_reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {reason_of(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection was closed mid-response"
    inner = getattr(error, "os_error", None)
    return reason_of(inner if isinstance(inner, OSError) else error)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    return await whole(response.content.iter_any(), MAX_ANSWER_BYTES)


def _object(data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data)
    except InvalidJsonError as error:
        raise ClusterError(f"the API server did not return a JSON object: {error}") from None


def _error_of(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    try:
        status = _object(body)
    except ClusterError:
        status = {}
    wait = response.headers.get("Retry-After", "")
    seconds = min(float(wait), MAX_WAIT) if wait.isdecimal() else 0.0
    return error_of_status(status, response.status, response.reason or "", seconds)


def error_of_status(status: Mapping[str, Any], code: int = 0, reason: str = "", retry_after: float = 0.0) -> ApiError:
    """Return the error described by a Status object.

    `code` and `reason` are used if the object does not contain its own values.
    """
    number = status.get("code")
    message, given = (" ".join(str(status.get(key) or "")[:_MAX_MESSAGE].split()) for key in ("message", "reason"))
    return ApiError(number if type(number) is int else code, given or reason, message, retry_after)

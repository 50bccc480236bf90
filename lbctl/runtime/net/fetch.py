"""Fetches one metrics page, with limits on time and size.

The entire request (name resolution, connection and response) must complete within `timeout` seconds. A body is limited
to 16 MiB after decompression, and reading stops as soon as it exceeds this; a line is limited to 64 KiB. A server with
data parallelism writes about 44 KiB per engine. A body larger than 1 MiB waits for `large`, which the caller uses to
limit how many such bodies are in memory at the same time. A redirect is treated as a failure. An unusable response does
not raise an exception: the result has a reason (one word, for metrics) and a message.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

import aiohttp

from lbctl.base.bounded import Bounded, TooLargeError
from lbctl.base.errors import reason_of
from lbctl.runtime.net.http_client import RefusedAddressError
from lbctl.signals.exposition import MAX_LINE_BYTES

Reason = Literal[
    "", "timeout", "address", "dns", "tls", "connection", "status", "redirect", "encoding", "too_large", "long_line",
    "html", "json", "empty", "nothing_known", "values", "query",
]  # fmt: skip
MAX_BYTES = 16 * 1024 * 1024
LARGE_BYTES = 1024 * 1024
"""Minimum size of a large body."""
Large = Callable[[], Awaitable[object]]
"""Called once when a body turns out to be large; returns when the rest may be read."""
_ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a request."""

    body: bytes = b""
    """The decompressed body; empty if it is not usable."""
    reason: Reason = ""
    """One-word reason why the body is not usable; empty if it is usable."""
    message: str = ""
    """The reason as a short phrase."""
    size: int = 0
    """Size of the body in bytes."""
    date: str = ""
    """The `Date` header of a usable response."""


class _StopError(Exception):
    """The response is not usable, so the rest of it need not be read."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.fetched = Fetched(reason=reason, message=message)


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    timeout: float,
    query: str = "",
    at: float | None = None,
    large: Large | None = None,
    key: tuple[str, str] | None = None,
) -> Fetched:
    """Fetch a page within `timeout` seconds.

    With a `query`, fetch the query's result from the Prometheus API at this URL.

    `at`: the query's evaluation time, in seconds since the epoch; None: the server's current time. `large`: see the
    module docstring; None allows any number of large bodies at the same time. `key`: a header that the server requires,
    and its value.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _page(session, url, query, at, large, key)
    except TimeoutError:
        return Fetched(reason="timeout", message=f"no complete response within {timeout:g} s")
    except _StopError as stop:
        return stop.fetched
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return _failed(error)


async def _page(
    session: aiohttp.ClientSession,
    url: str,
    query: str,
    at: float | None,
    large: Large | None,
    key: tuple[str, str] | None,
) -> Fetched:
    target = _query_url(url) if query else url
    parameters = {"query": query} if query else {}
    if at is not None:
        parameters["time"] = f"{at:.3f}"
    headers = dict([key] if key else [])
    async with session.get(target, params=parameters, headers=headers, allow_redirects=False) as response:
        _check_head(response, bool(query))
        body = await _body(response, large)
    return replace(_checked(body, bool(query)), date=response.headers.get("Date", ""))


def _query_url(url: str) -> str:
    base = url.rstrip("/")
    return base if base.endswith("/api/v1/query") else f"{base}/api/v1/query"


def _check_head(response: aiohttp.ClientResponse, is_query: bool) -> None:
    """Raise _StopError if the status or size makes the response unusable.

    For a query, any status is accepted if the response is JSON, because Prometheus reports query errors that way.
    """
    if 300 <= response.status < 400:
        raise _StopError("redirect", f"{response.status}: redirects are not followed; set the final URL of the page")
    if response.status != 200 and not (is_query and response.content_type == "application/json"):
        raise _StopError("status", f"status {response.status}")
    if (response.content_length or 0) > MAX_BYTES:
        raise _too_large()


def _too_large() -> _StopError:
    return _StopError("too_large", f"a body of more than {MAX_BYTES >> 20} MiB")


async def _body(response: aiohttp.ClientResponse, large: Large | None) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return await _joined(response.content.iter_any(), large)
    if encoding not in _ENCODINGS:
        raise _StopError("encoding", "the response uses an encoding that was not requested")
    return await _joined(_inflated(response, _ENCODINGS[encoding]), large)


async def _joined(pieces: AsyncIterator[bytes], large: Large | None) -> bytes:
    body, is_large = Bounded(MAX_BYTES), False
    async for piece in pieces:
        try:
            body.add(piece)
        except TooLargeError:
            raise _too_large() from None
        if large is not None and not is_large and body.size > LARGE_BYTES:
            is_large = True
            await large()
    return body.take()


async def _inflated(response: aiohttp.ClientResponse, bits: int) -> AsyncIterator[bytes]:
    """Decompress a body, yielding at most `LARGE_BYTES` at a time."""
    inflater = zlib.decompressobj(bits)
    try:
        async for chunk in response.content.iter_any():
            yield inflater.decompress(chunk, LARGE_BYTES)
            while inflater.unconsumed_tail:
                yield inflater.decompress(inflater.unconsumed_tail, LARGE_BYTES)
            if inflater.eof:  # it would buffer all further data
                break
        yield inflater.flush()
    except zlib.error:
        raise _StopError("encoding", "an invalid compressed body") from None
    if not inflater.eof:
        raise _StopError("encoding", "a truncated compressed body")


def _checked(body: bytes, is_query: bool) -> Fetched:
    start = body[:64].lstrip()
    if start[:1] == b"<":
        return Fetched(reason="html", message="an HTML page", size=len(body))
    if not start:
        return Fetched(reason="empty", message="an empty page", size=len(body))
    if not is_query and start[:1] in b"{[":
        return Fetched(reason="json", message="JSON, not a metrics page", size=len(body))
    if not is_query and _has_long_line(body):
        return Fetched(reason="long_line", message="a line of more than 64 KiB", size=len(body))
    return Fetched(body, size=len(body))


def _has_long_line(body: bytes) -> bool:
    """Return whether any line is too long, in time proportional only to the length of the page."""
    start = 0
    while len(body) - start > MAX_LINE_BYTES:
        end = body.rfind(b"\n", start, start + MAX_LINE_BYTES + 1)
        if end < 0:
            return True
        start = end + 1
    return False


def _failed(error: Exception) -> Fetched:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, RefusedAddressError):
        return Fetched(reason="address", message=reason_of(cause))
    if isinstance(error, aiohttp.InvalidURL):
        return Fetched(reason="address", message=_invalid_url(error))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Fetched(reason="dns", message=reason_of(cause))
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return Fetched(reason="tls", message=reason_of(cause))
    return Fetched(reason="connection", message=reason_of(cause))


def _invalid_url(error: aiohttp.InvalidURL) -> str:
    """Describe the problem with a URL. aiohttp describes only an invalid host; otherwise, the entire URL is invalid."""
    return f"{error.url} {error.description}" if error.description else "the source's address is not a URL"

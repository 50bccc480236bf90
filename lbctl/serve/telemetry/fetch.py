"""One request for a page, within one time and one size, whoever answers.

The whole of it (name, connection, answer) has `timeout` seconds; a body has 1 MiB, counted after inflating and while it
comes; a page has no line over 64 KiB. Redirects are answers like any other wrong one. Nothing is raised: an answer that
cannot be used is a reason, one word for metrics and a sentence for people.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from dataclasses import dataclass, replace
from typing import Literal

import aiohttp

from lbctl.base.errors import reason_of
from lbctl.serve.net.http_client import RefusedAddressError
from lbctl.signals.exposition import MAX_LINE_BYTES

Reason = Literal[
    "", "timeout", "address", "dns", "tls", "connection", "status", "redirect", "encoding", "too_large", "long_line",
    "html", "json", "empty", "nothing_known", "values", "query",
]  # fmt: skip
MOST_BYTES = 1024 * 1024
_ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LONG = re.compile(rb"[^\n]{%d}" % (MAX_LINE_BYTES + 1))


@dataclass(frozen=True, slots=True)
class Fetched:
    """`body`: inflated; empty where `reason` says why there is none. `size`: bytes that were taken. `date`: the header,
    with a page."""

    body: bytes = b""
    reason: Reason = ""
    words: str = ""
    size: int = 0
    date: str = ""


class _StopError(Exception):
    """The answer is not worth reading on."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.fetched = Fetched(reason=reason, words=words)


async def fetch(session: aiohttp.ClientSession, url: str, timeout: float, query: str = "") -> Fetched:
    """`timeout`: seconds, in all. `query`: of Prometheus' API, whose address is then derived from the URL."""
    try:
        async with asyncio.timeout(timeout):
            return await _page(session, url, query)
    except TimeoutError:
        return Fetched(reason="timeout", words=f"no whole answer within {timeout:g} s")
    except _StopError as stop:
        return stop.fetched
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return _failed(error)


async def _page(session: aiohttp.ClientSession, url: str, query: str) -> Fetched:
    target = _query_url(url) if query else url
    parameters = {"query": query} if query else None
    async with session.get(target, params=parameters, allow_redirects=False) as response:
        _judge_head(response, bool(query))
        body = await _body(response)
    return replace(_judged(body, bool(query)), date=response.headers.get("Date", ""))


def _query_url(url: str) -> str:
    base = url.rstrip("/")
    return base if base.endswith("/api/v1/query") else f"{base}/api/v1/query"


def _judge_head(response: aiohttp.ClientResponse, is_query: bool) -> None:
    """Prometheus says in JSON what is wrong with a query, whatever the status."""
    if 300 <= response.status < 400:
        raise _StopError("redirect", f"{response.status}: redirects are not followed; write where the page is")
    if response.status != 200 and not (is_query and response.content_type == "application/json"):
        raise _StopError("status", f"status {response.status}")
    if (response.content_length or 0) > MOST_BYTES:
        raise _StopError("too_large", "a body of more than 1 MiB")


async def _body(response: aiohttp.ClientResponse) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return await _plain(response)
    if encoding not in _ENCODINGS:
        raise _StopError("encoding", "an encoding that was not asked for")
    return await _inflated(response, _ENCODINGS[encoding])


async def _plain(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise _StopError("too_large", "a body of more than 1 MiB")
    return bytes(body)


async def _inflated(response: aiohttp.ClientResponse, bits: int) -> bytes:
    inflater, body = zlib.decompressobj(bits), bytearray()
    try:
        async for chunk in response.content.iter_any():
            body += inflater.decompress(chunk, MOST_BYTES + 1 - len(body))
            if len(body) > MOST_BYTES:
                raise _StopError("too_large", "a body of more than 1 MiB when inflated")
    except zlib.error:
        raise _StopError("encoding", "a compressed body that is broken") from None
    if not inflater.eof:
        raise _StopError("encoding", "a compressed body that ends early")
    return bytes(body)


def _judged(body: bytes, is_query: bool) -> Fetched:
    start = body[:64].lstrip()
    if start[:1] == b"<":
        return Fetched(reason="html", words="an HTML page", size=len(body))
    if not start:
        return Fetched(reason="empty", words="an empty page", size=len(body))
    if not is_query and start[:1] in b"{[":
        return Fetched(reason="json", words="JSON, not a metrics page", size=len(body))
    if not is_query and len(body) > MAX_LINE_BYTES and _LONG.search(body):
        return Fetched(reason="long_line", words="a line of more than 64 KiB", size=len(body))
    return Fetched(body, size=len(body))


def _failed(error: Exception) -> Fetched:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, RefusedAddressError):
        return Fetched(reason="address", words=reason_of(cause))
    if isinstance(error, aiohttp.InvalidURL):
        return Fetched(reason="address", words=_no_url(error))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Fetched(reason="dns", words=reason_of(cause))
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return Fetched(reason="tls", words=reason_of(cause))
    return Fetched(reason="connection", words=reason_of(cause))


def _no_url(error: aiohttp.InvalidURL) -> str:
    """`description` is of the host alone; without one the whole URL is what is wrong."""
    return f"{error.url} {error.description}" if error.description else "the address of the source is no URL"

"""Asks each server for the few pages that tell what it is, all of them at once.

A server has `patience` seconds for all its answers together, and 1 MiB for each. Redirects are not followed, no cookie,
no proxy of the environment and no credential is sent, and addresses that no replica can have are refused after every
resolution (`scrape_net`). What a server says is data: here it is only read and bounded.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from lbctl.init.place import Place
from lbctl.serve.scrape_net import session

PATIENCE = 5.0
"""Seconds."""
INDEX = "/v2/repository/index"
"""The models of a server of the v2 protocol: reading them takes a POST."""
PATHS = (
    "/v1/models", "/v2", "/metrics", "/info", "/props", "/get_model_info", "/-/routes", "/ping", "/models",
    "/v1/metadata", "/v1/metrics", "/prometheus/metrics", "/monitoring/prometheus/metrics", "/api/version",
)  # fmt: skip
_MOST_BYTES = 1024 * 1024
_AT_ONCE = 4
_HEADERS = {"Accept": "application/json, text/plain;version=0.0.4, */*;q=0.1"}


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0: there was none that can be used, for the reason in `words`. `data`: what the JSON of a 200 says."""

    status: int
    body: bytes = b""
    data: Any = None
    words: str = ""

    @property
    def html(self) -> bool:
        return self.body[:64].lstrip()[:1] == b"<"

    @property
    def page(self) -> bytes:
        """The text of a 200 that is neither HTML nor JSON, as a page of metrics is."""
        return self.body if self.status == 200 and self.data is None and not self.html else b""


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one server. `trouble`: why there are none, in words; else empty."""

    place: Place
    by_path: Mapping[str, Answer]
    trouble: str = ""

    def data(self, path: str) -> Any:
        """What the JSON says there; None where there is none."""
        return self.by_path[path].data if path in self.by_path else None

    def page(self, path: str) -> bytes:
        return self.by_path[path].page if path in self.by_path else b""


async def ask(places: Sequence[Place], patience: float = PATIENCE) -> list[Answers]:
    """In the order of the places. Raises nothing: whoever does not answer has a `trouble`."""
    async with session() as client:
        return list(await asyncio.gather(*(_one(client, place, patience) for place in places)))


async def _one(client: aiohttp.ClientSession, place: Place, patience: float) -> Answers:
    try:
        async with asyncio.timeout(patience):
            found = await _all(client, place)
    except TimeoutError:
        return Answers(place, {}, f"no whole answer within {patience:g} s")
    if not any(item.status for item in found.values()):
        return Answers(place, {}, next(item.words for item in found.values()))
    return Answers(place, found)


async def _all(client: aiohttp.ClientSession, place: Place) -> dict[str, Answer]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def get(path: str) -> Answer:
        async with gate:
            return await _answer(client, "GET", place.url + path)

    found = dict(zip(PATHS, await asyncio.gather(*map(get, PATHS)), strict=True))
    if isinstance(found["/v2"].data, dict):
        found[INDEX] = await _answer(client, "POST", place.url + INDEX)
    return found


async def _answer(client: aiohttp.ClientSession, method: str, url: str) -> Answer:
    content: dict[str, str] | None = {} if method == "POST" else None
    try:
        async with client.request(method, url, json=content, headers=_HEADERS, allow_redirects=False) as response:
            body = await _body(response)
            return Answer(response.status, body, _parsed(body) if response.status == 200 else None)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(0, words=_words(error))


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """ValueError for one that is too long, or compressed though nobody asked for that."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise ValueError("an encoding that was not asked for")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise ValueError("a body of more than 1 MiB")
    return bytes(body)


def _parsed(body: bytes) -> Any:
    if body[:64].lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _words(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    said = " ".join(str(getattr(cause, "strerror", None) or cause).split())[:200] or type(cause).__name__
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return f"TLS: {said}"
    return "what answers there does not speak HTTP" if isinstance(error, aiohttp.ServerDisconnectedError) else said

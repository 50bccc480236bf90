"""Requests the few pages that identify a server, from all servers concurrently.

Each server has `timeout` seconds for all its responses together. A response can be up to 4 MiB in size. Redirects are
not followed. Cookies, credentials other than the given key, and proxy settings from the environment are not used. After
every name resolution, addresses that replicas must not have are rejected. Responses are untrusted data, so this module
only limits their size and parses them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from lbctl.base.bounded import whole
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, parse
from lbctl.init.probe_target import ProbeTarget
from lbctl.runtime.net.http_client import session

TIMEOUT = 5.0
"""Time limit for all responses from one server, in seconds."""
REPOSITORY_INDEX = "/v2/repository/index"
"""Path of the model list on a v2 server. It must be requested with POST."""
PATHS = (
    "/v1/models", "/v2", "/metrics", "/info", "/props", "/get_model_info", "/-/routes", "/ping", "/models",
    "/v1/metadata", "/v1/metrics", "/prometheus/metrics", "/monitoring/prometheus/metrics", "/api/version",
)  # fmt: skip
MAX_BYTES = 4 << 20
"""Maximum size of a response, in bytes."""
_MAX_CONCURRENT = 4
_HEADERS = {"Accept": "application/json, text/plain;version=0.0.4, */*;q=0.1"}


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """The response to one request."""

    status: int
    """HTTP status, or 0 if no usable response was received."""
    body: bytes = b""
    """Body, truncated at the limit."""
    data: Any = None
    """Parsed JSON from a 200 response."""
    error: str = ""
    """Reason why no usable response was received."""

    @property
    def html(self) -> bool:
        """Whether the body looks like HTML."""
        return self.body[:64].lstrip()[:1] == b"<"

    @property
    def page(self) -> bytes:
        """Body of a 200 response that is neither HTML nor JSON, such as metrics."""
        return self.body if self.status == 200 and self.data is None and not self.html else b""


@dataclass(frozen=True, slots=True)
class ServerResponses:
    """A server's responses."""

    target: ProbeTarget
    by_path: Mapping[str, ProbeResponse]
    """Maps each path to the response."""
    failure: str = ""
    """Reason why no responses were received, or an empty string otherwise."""

    def data(self, path: str) -> Any:
        """Return the parsed JSON at `path`, or None."""
        return self.by_path[path].data if path in self.by_path else None

    def page(self, path: str) -> bytes:
        """Return the metrics at `path`, or empty bytes."""
        return self.by_path[path].page if path in self.by_path else b""


async def probe(targets: Sequence[ProbeTarget], timeout: float = TIMEOUT, api_key: str = "") -> list[ServerResponses]:
    """Probe all targets and return their responses in order. If a server does not respond, its `failure` is set.

    `api_key` is sent to each target as a bearer token.
    """
    headers = {**_HEADERS, "Authorization": f"Bearer {api_key}"} if api_key else _HEADERS
    async with session() as client:
        return list(await asyncio.gather(*(_probe_server(client, target, timeout, headers) for target in targets)))


async def _probe_server(
    client: aiohttp.ClientSession, target: ProbeTarget, timeout: float, headers: Mapping[str, str]
) -> ServerResponses:
    try:
        async with asyncio.timeout(timeout):
            responses = await _responses(client, target, headers)
    except TimeoutError:
        return ServerResponses(target, {}, f"no complete response within {timeout:g} s")
    if not any(response.status for response in responses.values()):
        return ServerResponses(target, {}, next(response.error for response in responses.values()))
    return ServerResponses(target, responses)


async def _responses(
    client: aiohttp.ClientSession, target: ProbeTarget, headers: Mapping[str, str]
) -> dict[str, ProbeResponse]:
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT)

    async def get(path: str) -> ProbeResponse:
        async with semaphore:
            return await _request(client, "GET", target.url + path, headers)

    responses = dict(zip(PATHS, await asyncio.gather(*map(get, PATHS)), strict=True))
    if isinstance(responses["/v2"].data, dict):
        responses[REPOSITORY_INDEX] = await _request(client, "POST", target.url + REPOSITORY_INDEX, headers)
    return responses


async def _request(client: aiohttp.ClientSession, method: str, url: str, headers: Mapping[str, str]) -> ProbeResponse:
    content: dict[str, str] | None = {} if method == "POST" else None
    try:
        async with client.request(method, url, json=content, headers=headers, allow_redirects=False) as response:
            body = await _body(response)
            return ProbeResponse(response.status, body, _parsed(body) if response.status == 200 else None)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return ProbeResponse(0, error=_describe(error))


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Read the body.

    Raises ValueError if the body is too long, or if it is compressed even though this was not requested.
    """
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise ValueError("the response uses an encoding that was not requested")
    return await whole(response.content.iter_any(), MAX_BYTES)


def _parsed(body: bytes) -> Any:
    if body[:64].lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return parse(body)
    except InvalidJsonError:
        return None


def _describe(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    message = reason_of(cause)
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return f"TLS: {message}"
    return (
        "the server at this address does not use HTTP"
        if isinstance(error, aiohttp.ServerDisconnectedError)
        else message
    )

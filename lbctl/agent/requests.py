"""Sends the agent's own requests to the engine: warm-ups when it has just started, and probes while it is idle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import aiohttp

from lbctl.agent.engine import connection_problem
from lbctl.agent.engine_key import key_header
from lbctl.agent.memory import RequestKind
from lbctl.agent.settings import AgentSettings
from lbctl.base.bounded import TooLargeError, whole
from lbctl.base.foreign_json import InvalidJsonError, parse_object, shaped
from lbctl.runtime.net.http_client import session

TIMEOUTS: Mapping[RequestKind, float] = {"warmup": 120.0, "probe": 10.0}
"""Time limit for a request, in seconds. The first request to a newly started engine may compile kernels."""
MAX_BYTES = 1 << 20
"""Maximum size of a response, in bytes."""
_MODELS = "/v1/models"


class _FailedError(Exception):
    """The engine did not answer the request. The message states the reason."""


class EngineRequests:
    """Sends requests to one engine."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings

    async def send(self, kind: RequestKind = "probe") -> str:
        """Send one request and read the whole response. Return the problem, or an empty string if the engine responded.

        Never raises. `kind` determines the time limit.
        """
        key, key_problem = key_header(self._settings)
        timeout = TIMEOUTS[kind]
        try:
            async with asyncio.timeout(timeout), session() as client:
                await self._send(client, key)
        except TimeoutError:
            return f"{self._settings.request.path}: no complete response within {timeout:g} s"
        except (_FailedError, TooLargeError, InvalidJsonError) as error:
            return f"{error}; {key_problem}" if key_problem else str(error)
        except Exception as error:  # noqa: BLE001 -- the agent survives any response from an engine
            return f"{self._settings.request.path}: {connection_problem(error)}"
        return ""

    async def _send(self, client: aiohttp.ClientSession, key: Mapping[str, str]) -> None:
        request = self._settings.request
        body = request.body.encode() if request.body else _one_token(await self._first_model(client, key))
        headers = {"Content-Type": "application/json", "Accept": "*/*", **key}
        if not await self._response(client, "POST", request.path, headers, body):
            raise _FailedError(f"{request.path}: an empty response")

    async def _first_model(self, client: aiohttp.ClientSession, key: Mapping[str, str]) -> str:
        body = await self._response(client, "GET", _MODELS, {"Accept": "application/json", **key})
        try:
            models = shaped(parse_object(body), {"data": [{"id": str}]}).get("data", [])
        except InvalidJsonError as error:
            raise _FailedError(f"{_MODELS}: {error}") from None
        if not models or "id" not in models[0]:
            raise _FailedError(f"{_MODELS} lists no model; set the request with --request")
        model: str = models[0]["id"]
        return model

    async def _response(
        self, client: aiohttp.ClientSession, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> bytes:
        """Return the body of a response. Raises _FailedError, TooLargeError and aiohttp's errors."""
        url = self._settings.engine + path
        async with client.request(method, url, data=body or None, headers=headers, allow_redirects=False) as response:
            if not 200 <= response.status < 300:
                raise _FailedError(f"{path}: status {response.status}")
            return await whole(response.content.iter_any(), MAX_BYTES)


def _one_token(model: str) -> bytes:
    return json.dumps({"model": model, "prompt": "Hi", "max_tokens": 1}).encode()

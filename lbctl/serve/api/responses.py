"""JSON request and response bodies, including errors."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import Any

from aiohttp import web

from lbctl.api import schema
from lbctl.api.codec import encode, is_unicode
from lbctl.runtime import log
from lbctl.runtime.net.connections import FIRST_REQUEST, Handler, connection_of

MAX_BODY_BYTES = 64 * 1024
"""Maximum size of a request body in bytes."""
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Headers included in every response."""


class RefusedRequest(Exception):  # noqa: N818 - it is an answer
    """The request is rejected with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@web.middleware
async def as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert every failure into an `Error` response."""
    try:
        return await handler(request)
    except RefusedRequest as refused:
        headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
        return json_response(schema.Error(str(refused)), refused.status, headers)
    except web.HTTPException as answer:
        allow = {name: value for name, value in answer.headers.items() if name.lower() == "allow"}
        return json_response(schema.Error(answer.reason.lower()), answer.status, allow)
    except Exception:  # noqa: BLE001 -- an error of ours must not end the API
        log.failure("API request failed", path=request.path)
        return json_response(schema.Error("internal error; see the log for details"), 500)


async def read_body(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in the request's body. Raises RefusedRequest and HTTPRequestEntityTooLarge."""
    if request.content_type != "application/json":
        raise RefusedRequest(415, "the body must be JSON, with a content-type: application/json header")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
    content = await read_bytes(request)
    try:
        body = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise RefusedRequest(400, "the body is not a JSON object")
    if not is_unicode(body):
        raise RefusedRequest(400, "the body contains an unpaired surrogate, which is not a valid character")
    return body


async def read_bytes(request: web.Request) -> bytes:
    """Return a request's body. The connection is considered idle until the body arrives. Raises RefusedRequest."""
    connection = connection_of(request)
    try:
        async with asyncio.timeout(FIRST_REQUEST):
            with nullcontext() if connection is None else connection.awaiting_body():
                return await request.read()
    except TimeoutError:
        raise RefusedRequest(408, f"the body did not arrive within {FIRST_REQUEST:g} seconds") from None
    except ConnectionError:
        raise RefusedRequest(400, "the connection was closed before the whole body arrived") from None


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a response that contains the value, encoded as JSON by `json_codec`."""
    return web.Response(
        text=encode(value, indent=1) + "\n",
        status=status,
        content_type="application/json",
        charset="utf-8",
        headers=HEADERS | (headers or {}),
    )

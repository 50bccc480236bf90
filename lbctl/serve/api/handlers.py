"""The handlers for the route table.

A route that returns a JSON document has a function decorated with `@operation`; any other route has a handler decorated
with `@handler`. The function or handler is named after the route's operation.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from aiohttp import web

from lbctl.api import schema
from lbctl.api.codec import SchemaError, parse
from lbctl.api.routes import ApiRoute
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.runtime.net.connections import Handler
from lbctl.serve.api.authorization import ACTOR
from lbctl.serve.api.interface import SERVING, Serving
from lbctl.serve.api.responses import RefusedRequest, json_response, read_body
from lbctl.serve.metrics.instruments import CONTENT_TYPE

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Maps each operation of the route table to the function that returns its document."""
HANDLERS: dict[str, Handler] = {}
"""Maps each operation in the route table that has no document to the handler of its requests."""
READY = schema.Probe("ok")
"""A probe's response when it has nothing to report."""
_F = TypeVar("_F", bound=Callable[..., Any])


def operation(function: _F) -> _F:
    """Register the function that returns the document for the operation of the same name.

    The function takes the state, the query if the route has parameters, and the body and operator name if the route has
    a body.
    """
    OPERATIONS[function.__name__] = function
    return function


def handler(function: _F) -> _F:
    """Register the function that handles requests for the operation of the same name."""
    HANDLERS[function.__name__] = function
    return function


def handler_of(route: ApiRoute, serving: Serving) -> Handler:
    """Return a route's handler."""
    own = HANDLERS.get(route.operation)
    return own if own is not None else _document(route, serving.operation(route.operation))


@handler
async def metrics(request: web.Request) -> web.Response:
    """Return the metrics page in the Prometheus text format."""
    return web.Response(body=request.app[SERVING].metrics(), headers={"content-type": CONTENT_TYPE})


def _document(route: ApiRoute, answer: Callable[..., Any]) -> Handler:
    """Return a handler that responds with an operation's document."""

    async def handle(request: web.Request) -> web.Response:
        try:
            document = answer(*[item async for item in _arguments(route, request)])
            if inspect.isawaitable(document):
                document = await document
        except (SchemaError, BadRequestError) as error:
            raise RefusedRequest(400, str(error)) from None
        except NotSavedError as error:
            raise RefusedRequest(503, str(error)) from None
        return json_response(document, 503 if route.unready and document != READY else 200)

    return handle


async def _arguments(route: ApiRoute, request: web.Request) -> AsyncIterator[object]:
    if route.parameters:
        yield request.query
    if route.body is not None:
        yield parse(route.body, await read_body(request))
        yield ACTOR.get()

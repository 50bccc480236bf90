"""The dashboard's HTTP responses: its files and its series."""

from __future__ import annotations

from aiohttp import web

from lbctl.runtime.errors import BadRequestError
from lbctl.serve.api.dashboard.pages import HEADERS, pages
from lbctl.serve.api.dashboard.series import Query
from lbctl.serve.api.handlers import handler
from lbctl.serve.api.interface import SERVING
from lbctl.serve.api.responses import RefusedRequest

INDEX = "index.html"


def takes_gzip(request: web.Request) -> bool:
    """Return whether the client accepts a gzip-compressed response."""
    offers = (item.strip().lower() for item in request.headers.get("accept-encoding", "").split(","))
    return any(item.partition(";")[0].strip() == "gzip" and not item.endswith(";q=0") for item in offers)


@handler
async def dashboard(request: web.Request) -> web.Response:
    """Return the page."""
    return _page(request, INDEX)


@handler
async def dashboard_file(request: web.Request) -> web.Response:
    """Return one of the page's files. Raises HTTPNotFound."""
    return _page(request, request.match_info["name"])


def _page(request: web.Request, name: str) -> web.Response:
    file = pages().get(name)
    if file is None:
        raise web.HTTPNotFound
    if request.headers.get("if-none-match") == file.etag:
        return web.Response(status=304, headers={**HEADERS, "etag": file.etag})
    packed = takes_gzip(request)
    headers = {**HEADERS, "etag": file.etag, "vary": "accept-encoding", "content-type": file.content_type}
    if packed:
        headers["content-encoding"] = "gzip"
    return web.Response(body=file.compressed if packed else file.content, headers=headers)


@handler
async def series(request: web.Request) -> web.Response:
    """Return a metric's history. Raises RefusedRequest."""
    try:
        query = Query.parse(request.query)
        version, content = await request.app[SERVING].dashboard.series(query)
    except BadRequestError as error:
        raise RefusedRequest(400, str(error)) from None
    headers = {"cache-control": "no-cache", "x-content-type-options": "nosniff", "etag": f'"{version}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return web.Response(status=304, headers=headers)
    response = web.Response(body=content, headers={**headers, "content-type": "application/json; charset=utf-8"})
    if takes_gzip(request) and len(content) > 4096:
        response.enable_compression(web.ContentCoding.gzip)
    return response

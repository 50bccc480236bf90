"""The HTTP server of the API: it checks who may ask, dispatches by the route table, and answers JSON.

Reading is open on loopback; beyond it, everything but the two probes and the empty page of the dashboard needs the
bearer token, over TLS. A write always needs the token, a JSON body and a Host that is served here, so that no page in
a browser can reach it by a name that it made point here. Errors are JSON too; no answer waits for anything but the
process itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from lbctl.base.hosts import is_ip, is_loopback
from lbctl.compile.files import read_regular
from lbctl.ir.address import Address
from lbctl.serve import log
from lbctl.serve.api import openapi, schema, tokens
from lbctl.serve.api.connections import FIRST_REQUEST, IDLE, Connection, Connections
from lbctl.serve.api.dashboard import http as dashboard_http
from lbctl.serve.api.dashboard.http import takes_gzip
from lbctl.serve.api.dashboard.service import MOST_STREAMS, Dashboard
from lbctl.serve.api.events import MOST_CLIENTS, EventLog, Subscription, TooManyClientsError
from lbctl.serve.api.forwarding import Forwarding, NoLeaderError, forward
from lbctl.serve.api.json_codec import encode, is_unicode
from lbctl.serve.api.routes import ROUTES
from lbctl.serve.api.streaming import stream
from lbctl.serve.api.tokens import Principal
from lbctl.serve.errors import BadRequestError, NotSavedError
from lbctl.serve.metrics.instruments import CONTENT_TYPE
from lbctl.serve.picker.feed import MOST_PICKERS, Feed, TableEvents, TooManyPickersError
from lbctl.serve.state.interface import StoreError

_LARGEST = 64 * 1024
"""Bytes of a request's body, and of the token's file."""
_GRACE = 1.0
"""Seconds that a running answer gets when the API stops."""
_MOST_RECORDS = 5_000
"""Records of the audit log that are kept, and so the most that an answer has."""
_LINGERING = 0.5
"""Seconds for which the rest of a refused body is read, so that its sender can read the answer."""
HEARTBEAT = 15.0
"""Seconds without an event after which a stream gets a comment, so that proxies in between keep it open."""
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")
_PICKER_ID, _PICKER_ADDRESS = re.compile(r"[0-9A-Za-z]{1,64}"), re.compile(r"(?:[0-9.]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}")
_PUBLIC = frozenset(route.path for route in ROUTES if route.access == "public")
_ACTOR: ContextVar[str] = ContextVar("actor")
"""The name of the token of the request that is handled."""
_AFAR = "the file of control.api.token_file, or api-token in the state directory, on its machine"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _NoLines(logging.Filter):
    """Replaces aiohttp's error about a request that is no HTTP: it repeats a line, which may hold a token."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            record.msg, record.args, record.exc_info = "the API: a request that is no HTTP is refused", (), None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


_LOG = logging.getLogger("lbctl.serve.http")
_LOG.addFilter(_NoLines())


class Serving(Protocol):
    """The documents that the API answers, and the operations behind its writes."""

    @property
    def events(self) -> EventLog:
        """The events that are streamed."""

    @property
    def dashboard(self) -> Dashboard:
        """The stream and the history of the dashboard."""

    def ready(self) -> str:
        """Return why no proxy is answered yet; empty when proxies are answered."""

    def status(self) -> schema.Status:
        """Return `/api/v1/status`."""

    def proxies(self) -> schema.Proxies:
        """Return `/api/v1/proxies`."""

    def pools(self) -> schema.Pools:
        """Return `/api/v1/pools`."""

    def fleet(self) -> schema.FleetSettings:
        """Return `/api/v1/fleet`."""

    def signals(self) -> schema.Signals:
        """Return `/api/v1/signals`."""

    def decisions(self) -> schema.Decisions:
        """Return `/api/v1/decisions`."""

    async def explain_pick(self, body: dict[str, Any], actor: str) -> schema.PickExplanation:
        """Return which replica a request would be given. Raises BadRequestError and NotSavedError."""

    def picks(self) -> schema.Picks:
        """Return `GET /api/v1/picks`."""

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""

    def overrides(self) -> schema.Overrides:
        """Return `GET /api/v1/overrides`."""

    def rollouts(self) -> schema.Rollouts:
        """Return `GET /api/v1/rollouts`."""

    def history(self) -> schema.History:
        """Return `GET /api/v1/history`."""

    def members(self) -> schema.Members:
        """Return `GET /api/v1/members`."""

    def forwards_to(self) -> Forwarding | None:
        """Return where writes are forwarded to; None where this process carries them out."""

    async def audit(self) -> schema.Audit:
        """Return `GET /api/v1/audit`. Raises StoreError."""

    def metrics(self) -> bytes:
        """Return the page of metrics in the text format of Prometheus."""

    async def reload(self, allow_shrink: bool, actor: str) -> schema.ReloadResult:
        """Read the files now."""

    async def rollback(self, body: dict[str, Any], actor: str) -> schema.RollbackResult:
        """Serve an earlier fleet until the files change. Raises BadRequestError and NotSavedError."""

    async def put_override(self, body: dict[str, Any], actor: str) -> schema.OverrideResult:
        """Hold an override from now on. Raises BadRequestError and NotSavedError."""

    async def act_on_rollout(self, body: dict[str, Any], actor: str) -> schema.RolloutResult:
        """Start, move or end a rollout. Raises BadRequestError and NotSavedError."""

    async def remove_override(self, body: dict[str, Any], actor: str) -> schema.RemovalResult:
        """End an override. Raises BadRequestError and NotSavedError."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API listens, and who may ask."""

    bind: Address
    """Where the API listens."""
    token: Path | None = None
    """The file that holds the token; None: nobody may write."""
    tls: ssl.SSLContext | None = None
    """Its TLS context; None: plain connections."""

    @property
    def guarded(self) -> bool:
        """Whether reading needs the token too."""
        return not self.bind.on_loopback


class Api:
    """The HTTP server. It holds no state but its sockets."""

    def __init__(self, serving: Serving, access: Access) -> None:
        self._serving = serving
        self._access = access
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None

    async def start(self) -> int:
        """Bind, serve, and return the port; 0 for a Unix socket. Raises OSError where that cannot be."""
        app = web.Application(
            client_max_size=_LARGEST, middlewares=[_counted, _as_json, self._known_host, self._allowed]
        )
        handlers = self._handlers()
        for route in ROUTES:
            if route.method == "GET":
                allow_head = route.answer != "text/event-stream"
                app.router.add_get(route.path, handlers[route.operation], allow_head=allow_head)
            else:
                app.router.add_route(route.method, route.path, handlers[route.operation])
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_GRACE,
            keepalive_timeout=IDLE,
            lingering_time=_LINGERING,
            logger=_LOG,
        )
        await self._runner.setup()
        try:
            self._listening = await self._listen(self._runner)
        except OSError:
            await self.stop()
            raise
        name = self._listening.sockets[0].getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None
        bind, tls, loop = self._access.bind, self._access.tls, asyncio.get_running_loop()
        protocol = Connections(runner.server, patience=FIRST_REQUEST).protocol
        patience = FIRST_REQUEST if tls else None
        if bind.path:
            return await loop.create_unix_server(protocol, bind.path, ssl=tls, ssl_handshake_timeout=patience)
        return await loop.create_server(protocol, bind.host, bind.port, ssl=tls, ssl_handshake_timeout=patience)

    async def stop(self) -> None:
        """Close the listening socket, give running answers a moment, and close every connection."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _handlers(self) -> Mapping[str, _Handler]:
        """Return operation of the route table → its handler."""
        serving = self._serving
        return {
            "healthz": _document(lambda: schema.Probe("ok")),
            "readyz": self._readyz,
            "metrics": self._metrics,
            "status": _document(serving.status),
            "proxies": _document(serving.proxies),
            "pools": _document(serving.pools),
            "fleet": _document(serving.fleet),
            "signals": _document(serving.signals),
            "decisions": _document(serving.decisions),
            "picks": _document(serving.picks),
            "pick_tables": self._pick_tables,
            "overrides": _document(serving.overrides),
            "rollouts": _document(serving.rollouts),
            "history": _document(serving.history),
            "members": _document(serving.members),
            "audit": self._audit,
            "events": self._events,
            "live": self._live,
            "series": self._series,
            "dashboard": dashboard_http.page,
            "dashboard_file": dashboard_http.page,
            "openapi": _document(openapi.document),
            "reload": self._reload,
            "rollback": _operation(serving.rollback),
            "explain_pick": _operation(serving.explain_pick),
            "put_override": _operation(serving.put_override),
            "act_on_rollout": _operation(serving.act_on_rollout),
            "remove_override": _operation(serving.remove_override),
        }

    async def _readyz(self, _request: web.Request) -> web.Response:
        waiting = self._serving.ready()
        return _json(schema.Probe(waiting), 503) if waiting else _json(schema.Probe("ok"))

    async def _audit(self, request: web.Request) -> web.Response:
        last = request.query.get("last", str(_MOST_RECORDS))
        if not last.isascii() or not last.isdecimal() or not 1 <= int(last[:9]) <= _MOST_RECORDS:
            raise _Refused(400, f"last is a whole number from 1 to {_MOST_RECORDS}")
        try:
            audit = await self._serving.audit()
        except StoreError as error:
            raise _Refused(503, f"the audit log cannot be read: {error}") from None
        return _json(schema.Audit(audit.records[-int(last) :]))

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._serving.metrics(), headers={"content-type": CONTENT_TYPE})

    async def _reload(self, request: web.Request) -> web.Response:
        body = await _body(request)
        allow = body.pop("allow_shrink", False)
        if body or not isinstance(allow, bool):
            raise _Refused(400, 'the body is {} or {"allow_shrink": true|false}')
        actor = _ACTOR.get()
        log.event("asked by the API to read the files again", allow_shrink=allow, peer=request.remote, actor=actor)
        return _json(await self._serving.reload(allow, actor))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Stream events until the client or the process ends it."""
        try:
            with self._serving.events.subscribe(request.headers.get("last-event-id")) as subscription:
                return await stream(request, _WithHeartbeat(subscription), _HEADERS)
        except TooManyClientsError:
            raise _Refused(503, f"there are {MOST_CLIENTS} streams of events already") from None

    async def _pick_tables(self, request: web.Request) -> web.StreamResponse:
        """Stream the tables of replicas to a picker."""
        try:
            with self._serving.pick_feed.subscribe(_peer(request)) as subscription:
                return await stream(request, TableEvents(subscription, HEARTBEAT), _HEADERS)
        except TooManyPickersError:
            raise _Refused(503, f"there are {MOST_PICKERS} pickers already") from None

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Stream frames of the dashboard until the client or the process ends it."""
        packed = takes_gzip(request)
        try:
            with self._serving.dashboard.subscribe(packed=packed) as frames:
                return await stream(request, frames, _HEADERS | ({"content-encoding": "gzip"} if packed else {}))
        except TooManyClientsError:
            raise _Refused(503, f"there are {MOST_STREAMS} dashboards already") from None

    async def _series(self, request: web.Request) -> web.Response:
        try:
            return await dashboard_http.series(request, self._serving.dashboard)
        except BadRequestError as error:
            raise _Refused(400, str(error)) from None

    @web.middleware
    async def _known_host(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse a name that somebody else's DNS makes point here.

        Behind TLS and a token the certificate protects against that, and probes of an orchestrator use any address.
        """
        if (
            not self._access.guarded
            and not self._access.bind.path
            and not _is_served(_host_name(request.host), self._access)
        ):
            raise _Refused(403, "this Host is not served here")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise _Refused(403, "this Origin is not served here")
        return await handler(request)

    @web.middleware
    async def _allowed(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        reading = request.method in ("GET", "HEAD")
        if not _is_public(request) and (self._access.guarded or not reading):
            principal = await self._principal(request)
            if principal.role == "read" and not reading:
                raise _Refused(403, f"the token of {principal.name} may read, and not operate")
            _ACTOR.set(principal.name)
            target = None if reading else self._serving.forwards_to()
            if target is not None:
                return await _forwarded(request, target)
        return await handler(request)

    async def _principal(self, request: web.Request) -> Principal:
        """Return whose token the request has. Raises _Refused where it has none that is known."""
        accepted = tokens.parse(await asyncio.to_thread(read_token, self._access.token))
        if not accepted:
            raise _Refused(403, "this control plane has no token, so nobody may do that")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        credentials = given.strip().encode(errors="surrogateescape")  # the bytes of the header as they were sent
        principal = tokens.principal_of(accepted, credentials) if kind.lower() == "bearer" else None
        if principal is None:
            where = _AFAR if self._access.guarded else self._access.token
            raise _Refused(401, f"this needs the token; it is in {where}")
        return principal


def read_token(file: Path | None) -> bytes:
    """Read the token file, at each request so that a new token counts at once; empty where there is none."""
    try:
        return read_regular(file, _LARGEST).strip() if file is not None else b""
    except OSError:
        return b""


class _Refused(Exception):  # noqa: N818 - it is an answer
    """A request is answered with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@web.middleware
async def _counted(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Mark the connection as busy until the answer is there."""
    connection = request.transport.get_protocol() if request.transport else None
    if not isinstance(connection, Connection):
        return await handler(request)
    connection.begin()
    try:
        return await handler(request)
    finally:
        connection.end()


@web.middleware
async def _as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer whatever goes wrong with an `Error`."""
    try:
        return await handler(request)
    except _Refused as refused:
        headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
        return _json(schema.Error(str(refused)), refused.status, headers)
    except web.HTTPException as answer:
        allow = {name: value for name, value in answer.headers.items() if name.lower() == "allow"}
        return _json(schema.Error(answer.reason.lower()), answer.status, allow)
    except Exception:  # noqa: BLE001 -- an error of ours must not end the API
        log.failure("the API failed", path=request.path)
        return _json(schema.Error("internal error; the log has more"), 500)


async def _forwarded(request: web.Request, target: Forwarding) -> web.Response:
    try:
        return await forward(request, target)
    except NoLeaderError as error:
        raise _Refused(503, str(error)) from None


def _document(build: Callable[[], object]) -> _Handler:
    """Return a handler that answers what `build` returns."""

    async def handle(_request: web.Request) -> web.Response:
        return _json(build())

    return handle


def _operation(operation: Callable[[dict[str, Any], str], Awaitable[object]]) -> _Handler:
    """Return a handler that gives the body to an operation on overrides or rollouts."""

    async def handle(request: web.Request) -> web.Response:
        body = await _body(request)
        try:
            return _json(await operation(body, _ACTOR.get()))
        except BadRequestError as error:
            raise _Refused(400, str(error)) from None
        except NotSavedError as error:
            raise _Refused(503, str(error)) from None

    return handle


class _WithHeartbeat:
    """The events of a subscription, and a comment where none comes for `HEARTBEAT` seconds."""

    def __init__(self, subscription: Subscription) -> None:
        self.end = subscription.end
        self._subscription = subscription

    async def next(self) -> bytes | None:
        try:
            async with asyncio.timeout(HEARTBEAT):
                return await self._subscription.next()
        except TimeoutError:
            return b": heartbeat\n\n"


async def _body(request: web.Request) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise _Refused(415, "the body must be JSON: content-type: application/json")
    if (request.content_length or 0) > _LARGEST:
        raise web.HTTPRequestEntityTooLarge(_LARGEST, request.content_length or 0)
    try:
        async with asyncio.timeout(FIRST_REQUEST):
            body = json.loads((await request.read()).decode())
    except TimeoutError:
        raise _Refused(408, f"the body has not come within {FIRST_REQUEST:g} seconds") from None
    except (ValueError, RecursionError):
        raise _Refused(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise _Refused(400, "the body is not a JSON object")
    if not is_unicode(body):
        raise _Refused(400, "the body has half of a surrogate pair, which is no character")
    return body


def _peer(request: web.Request) -> tuple[str, str] | None:
    """Return the id and the address of the picker that asks for tables; None where it gives none.

    An address of loopback counts only from this machine. Raises _Refused.
    """
    own, address = request.query.get("id", ""), request.query.get("address", "")
    if not own and not address:
        return None
    host = address.rpartition(":")[0].strip("[]")
    if not _PICKER_ID.fullmatch(own) or not _PICKER_ADDRESS.fullmatch(address) or not is_ip(host):
        raise _Refused(400, "id and address are those of a picker: 1 to 64 letters and digits, and IP:PORT")
    return None if is_loopback(host) and not is_loopback(request.remote or "") else (own, address)


def _is_public(request: web.Request) -> bool:
    resource = request.match_info.route.resource
    return request.path in _PUBLIC or (resource is not None and resource.canonical in _PUBLIC)


def _host_name(host: str) -> str:
    """Return the name of a `Host` without its port, which may be a forwarded one; empty where it is malformed."""
    match = _HOST.fullmatch(host)
    return (match[1] or match[2]) if match else ""


def _is_served(name: str, access: Access) -> bool:
    return name.lower() == access.bind.host.lower() or is_loopback(name)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        text=encode(value, indent=1) + "\n",
        status=status,
        content_type="application/json",
        charset="utf-8",
        headers=_HEADERS | (headers or {}),
    )

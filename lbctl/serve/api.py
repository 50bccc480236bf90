"""The HTTP API of the control plane: what runs, for people, scripts and Prometheus; `reload`, and what operators hold.

Reading is open on loopback; beyond it, everything but the two probes needs the bearer token, over TLS. A write always
needs the token, a JSON body and a Host that is ours, so that no page in a browser can reach it by a name that it made
point here. What is answered is always JSON, errors too; no answer waits for anything but the process itself.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from lbctl.ir.address import Address
from lbctl.serve import log
from lbctl.serve.metrics import CONTENT_TYPE

_LARGEST = 64 * 1024
"""Bytes of a request's body."""
_GRACE = 1.0
"""Seconds that a running answer gets when the API stops."""
_PROBES = ("/healthz", "/readyz")
_AFAR = "the file of control.api.token_file, or api-token in the state directory, on its machine"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WrongError(Exception):
    """What was asked cannot be; in words."""


class Serving(Protocol):
    """What the API shows. Everything returned is made of JSON's own types."""

    def ready(self) -> str:
        """Why no proxy is answered yet; empty when they are."""

    def status(self) -> dict[str, Any]: ...

    def proxies(self) -> list[dict[str, Any]]: ...

    def pools(self) -> list[dict[str, Any]]: ...

    def fleet(self) -> dict[str, str]: ...

    def signals(self) -> list[dict[str, Any]]: ...

    def decisions(self) -> list[dict[str, Any]]: ...

    def overrides(self) -> list[dict[str, Any]]: ...

    def metrics(self) -> bytes: ...

    async def reload(self, allow_shrink: bool) -> dict[str, Any]:
        """Reads the files now; `result` says what came of it."""

    async def hold(self, asked: dict[str, Any]) -> dict[str, Any]:
        """An override from now on. WrongError"""

    async def let_go(self, asked: dict[str, Any]) -> dict[str, Any]:
        """An override no longer. WrongError"""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask. `token`: the file that holds it, None: nobody may write; `guarded`: reading needs it too."""

    bind: Address
    token: Path | None = None
    tls: ssl.SSLContext | None = None

    @property
    def guarded(self) -> bool:
        return not is_loopback(self.bind)


class Api:
    """`start` binds and serves, `stop` ends. It holds no state of its own."""

    def __init__(self, serving: Serving, access: Access) -> None:
        self._serving = serving
        self._access = access
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """The port that it listens on, 0 for a unix socket. OSError where that cannot be."""
        app = web.Application(client_max_size=_LARGEST, middlewares=[_as_json, self._known_host, self._allowed])
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/api/v1/status", self._status),
                web.get("/api/v1/proxies", self._proxies),
                web.get("/api/v1/pools", self._pools),
                web.get("/api/v1/fleet", self._fleet),
                web.get("/api/v1/signals", self._signals),
                web.get("/api/v1/decisions", self._decisions),
                web.get("/api/v1/overrides", self._overrides),
                web.post("/api/v1/reload", self._reload),
                web.post("/api/v1/overrides", self._hold),
                web.delete("/api/v1/overrides", self._let_go),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_GRACE)
        await self._runner.setup()
        bind = self._access.bind
        site: web.BaseSite
        if bind.path:
            site = web.UnixSite(self._runner, bind.path, ssl_context=self._access.tls)
        else:
            site = web.TCPSite(self._runner, bind.host, bind.port, ssl_context=self._access.tls)
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        name = self._runner.addresses[0]
        return int(name[1]) if isinstance(name, tuple) else 0

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        waiting = self._serving.ready()
        return _json({"status": waiting}, 503) if waiting else _json({"status": "ok"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._serving.metrics(), headers={"content-type": CONTENT_TYPE})

    async def _status(self, _request: web.Request) -> web.Response:
        return _json(self._serving.status())

    async def _proxies(self, _request: web.Request) -> web.Response:
        return _json({"proxies": self._serving.proxies()})

    async def _pools(self, _request: web.Request) -> web.Response:
        return _json({"pools": self._serving.pools()})

    async def _fleet(self, _request: web.Request) -> web.Response:
        return _json({"settings": self._serving.fleet()})

    async def _signals(self, _request: web.Request) -> web.Response:
        return _json({"signals": self._serving.signals()})

    async def _decisions(self, _request: web.Request) -> web.Response:
        return _json({"decisions": self._serving.decisions()})

    async def _overrides(self, _request: web.Request) -> web.Response:
        return _json({"overrides": self._serving.overrides()})

    async def _hold(self, request: web.Request) -> web.Response:
        return _json(await _understood(self._serving.hold, await _body(request)))

    async def _let_go(self, request: web.Request) -> web.Response:
        return _json(await _understood(self._serving.let_go, await _body(request)))

    async def _reload(self, request: web.Request) -> web.Response:
        asked = await _body(request)
        allow = asked.pop("allow_shrink", False)
        if asked or not isinstance(allow, bool):
            raise _Refused(400, 'the body is {} or {"allow_shrink": true|false}')
        log.event("asked by the API to read the files again", allow_shrink=allow, peer=request.remote)
        return _json(await self._serving.reload(allow))

    @web.middleware
    async def _known_host(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """A name that somebody else's DNS makes point here is not ours. Behind TLS and a token the certificate says so;
        probes of an orchestrator ask by whatever address they have."""
        if not self._access.guarded and not self._access.bind.path and not _is_ours(_name(request.host), self._access):
            raise _Refused(403, "this Host is not served here")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise _Refused(403, "this Origin is not served here")
        return await handler(request)

    @web.middleware
    async def _allowed(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        reading = request.method in ("GET", "HEAD")
        if request.path not in _PROBES and (self._access.guarded or not reading):
            await self._check_token(request)
        return await handler(request)

    async def _check_token(self, request: web.Request) -> None:
        token = await asyncio.to_thread(read_token, self._access.token)
        if not token:
            raise _Refused(403, "this control plane has no token, so nobody may do that")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token):
            where = _AFAR if self._access.guarded else self._access.token
            raise _Refused(401, f"this needs the token; it is in {where}")


def read_token(file: Path | None) -> bytes:
    """Read each time, so that a new one counts at once; empty where there is none."""
    try:
        return file.read_bytes().strip() if file is not None else b""
    except OSError:
        return b""


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach it. A name other than localhost may be any machine."""
    if address.path:
        return True
    try:
        return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
    except ValueError:
        return address.host == "localhost"


class _Refused(Exception):  # noqa: N818 - it is an answer
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@web.middleware
async def _as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Whatever goes wrong is JSON with one `error`."""
    try:
        return await handler(request)
    except _Refused as refused:
        headers = {"www-authenticate": "Bearer"} if refused.status == 401 else None
        return _json({"error": str(refused)}, refused.status, headers)
    except web.HTTPException as answer:
        kept = {name: value for name, value in answer.headers.items() if name.lower() == "allow"}
        return _json({"error": answer.reason.lower()}, answer.status, kept)
    except Exception:  # noqa: BLE001 -- an error of ours must not end the API
        log.failure("the API failed", path=request.path)
        return _json({"error": "internal error; the log has more"}, 500)


async def _understood(
    serve: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], asked: dict[str, Any]
) -> dict[str, Any]:
    try:
        return await serve(asked)
    except WrongError as error:
        raise _Refused(400, str(error)) from None


async def _body(request: web.Request) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise _Refused(415, "the body must be JSON: content-type: application/json")
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise _Refused(400, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise _Refused(400, "the body is not a JSON object")
    return body


def _name(host: str) -> str:
    """Of `Host`, without the port: it may be reached through a forwarded one."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_ours(name: str, access: Access) -> bool:
    return name.lower() == access.bind.host.lower() or is_loopback(Address(name.lower()))


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    fixed = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return web.Response(
        text=body, status=status, content_type="application/json", charset="utf-8", headers=fixed | (headers or {})
    )

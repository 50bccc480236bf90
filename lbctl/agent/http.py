"""The agent's HTTP server, which serves `GET /health` and `GET /metrics`.

Requests are read-only. With `/health?unhealthy_threshold=N`, a client specifies the number of failed checks after which
it stops sending requests. A drain waits for one response more than that. Connections from outside the client networks
are closed without being read. If a token file is set, every request needs a token. The token file and the certificate
are reread, so both can be replaced while the agent is running.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from lbctl.agent.access import MAX_TOKEN_BYTES, ClientNetworks, has_token, listening_socket
from lbctl.agent.draining import DEFAULT_THRESHOLD, MAX_THRESHOLD
from lbctl.agent.metrics_page import CONTENT_TYPE, page
from lbctl.agent.replica_watch import Health, ReplicaWatch
from lbctl.agent.settings import AgentSettings
from lbctl.base.errors import reason_of
from lbctl.ir.pools import THRESHOLD_PARAMETER
from lbctl.ir.proxies import ServerTls
from lbctl.runtime import log
from lbctl.runtime.net.connections import FIRST_REQUEST, IDLE, ConnectionLimit, Handler, counted
from lbctl.runtime.net.http_certificate import HttpCertificate
from lbctl.runtime.net.invalid_requests import InvalidRequests
from lbctl.xds.protocol.idle_connections import IdleConnections

MAX_CONNECTIONS = 64
_MAX_HEADERS = 64
"""Maximum number of header lines in a request, each at most 8,190 bytes long."""
_MAX_BODY_BYTES = 4096
_THRESHOLD = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_MAX_NAME = 64
"""Maximum length of a client's User-Agent, which distinguishes clients with the same address."""
_RENEWAL_INTERVAL = 10.0
"""Seconds between checks for a new certificate."""
_GRACE = 1.0
"""Seconds that responses in progress have to finish when the agent stops."""
_LINGERING = 0.5
_LOG = logging.getLogger("lbctl.agent.http")
_LOG.addFilter(InvalidRequests("the agent"))


def document(health: Health) -> dict[str, Any]:
    """Return the JSON document of `/health`."""
    assessment = health.assessment
    reasons = [
        {"code": reason.code, "device": reason.device, "message": reason.message} for reason in assessment.reasons
    ]
    return {
        "state": assessment.state,
        "healthy": assessment.state == "healthy",
        "weight": assessment.weight,
        "reasons": reasons,
        "notes": list(assessment.notes),
        "since": datetime.fromtimestamp(health.since, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


def _threshold(text: str) -> int:
    """Return the client's threshold, at most `MAX_THRESHOLD`, or the default if it is missing or invalid."""
    return min(int(text), MAX_THRESHOLD) if _THRESHOLD.fullmatch(text) else DEFAULT_THRESHOLD


def runner(app: web.Application) -> web.AppRunner:
    """Return a server with limits on its requests."""
    return web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_GRACE,
        keepalive_timeout=IDLE,
        lingering_time=_LINGERING,
        max_headers=_MAX_HEADERS,
        logger=_LOG,
    )


class AgentHttpServer:
    """Serves HTTP on `settings.bind` from `start` until `close`."""

    def __init__(self, settings: AgentSettings, networks: ClientNetworks, watch: ReplicaWatch) -> None:
        """Raises OSError if the certificate is not usable."""
        self._settings = settings
        self._networks = networks
        self._watch = watch
        self._hostname = socket.gethostname()
        tls = ServerTls(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
        self._certificate = HttpCertificate(tls)
        self._renewal_failure = log.LastingFailure("the agent's certificate can be read again")
        self._token_failure = log.LastingFailure("the agent's token file can be read again")
        self._runner = runner(self.application())
        self._listening: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def application(self) -> web.Application:
        """Return an application with the routes."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[counted, self._authorized])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be bound."""
        await self._runner.setup()
        assert self._runner.server is not None
        tls = self._certificate.context
        limit = ConnectionLimit(self._runner.server, MAX_CONNECTIONS)
        listening = listening_socket(self._settings.bind, self._networks)
        self._listening = await asyncio.get_running_loop().create_server(
            limit.protocol, sock=listening, ssl=tls, ssl_handshake_timeout=FIRST_REQUEST if tls else None
        )
        if tls is not None:
            handshakes = IdleConnections(self._settings.bind.port, limit.clients, MAX_CONNECTIONS, MAX_CONNECTIONS)
            self._tasks = [asyncio.create_task(handshakes.run()), asyncio.create_task(self._renew())]

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        for task in self._tasks:
            task.cancel()
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.StreamResponse:
        health = self._watch.health
        self._watch.answered(
            f"{request.remote} {request.headers.get('User-Agent', '')[:_MAX_NAME]}",
            _threshold(request.query.get(THRESHOLD_PARAMETER, "")),
        )
        return web.json_response(document(health), status=200 if health.assessment.state == "healthy" else 503)

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        watch = self._watch
        body = page(watch.health.assessment, watch.gpus, watch.engine, watch.xids, self._hostname)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests without a valid token if the settings have a token file."""
        if self._settings.token_file and not self._has_token(request.headers.get("Authorization", "")):
            return web.json_response(
                {"error": "this request needs a token"}, status=401, headers={"WWW-Authenticate": "Bearer"}
            )
        return await handler(request)

    def _has_token(self, header: str) -> bool:
        try:
            with Path(self._settings.token_file).open("rb") as opened:
                content = opened.read(MAX_TOKEN_BYTES)
        except OSError as error:
            self._token_failure.failed(f"the agent's token file cannot be read: {reason_of(error)}")
            return False
        self._token_failure.succeeded()
        return has_token(header, content)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEWAL_INTERVAL)
            if reason := self._certificate.renew():
                self._renewal_failure.failed(f"the agent's certificate cannot be read: {reason}")
            else:
                self._renewal_failure.succeeded()

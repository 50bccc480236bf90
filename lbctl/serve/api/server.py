"""The API's HTTP server: authorizes requests, dispatches them using the route table, and returns JSON.

Reads do not require a token on loopback. Elsewhere, everything except the two probes and the empty dashboard page
requires the bearer token, over TLS. A write always requires the token, a JSON body and an allowed Host header, so that
a web page cannot send one through DNS rebinding. Errors are also returned as JSON. Responses never wait for another
process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from pathlib import Path

from aiohttp import web

from lbctl.api.routes import ROUTES
from lbctl.runtime.net.connections import FIRST_REQUEST, IDLE, ConnectionLimit, counted
from lbctl.runtime.net.invalid_requests import InvalidRequests
from lbctl.serve.api.authorization import ApiAccess, Authorization
from lbctl.serve.api.handlers import handler_of
from lbctl.serve.api.interface import SERVING, Serving
from lbctl.serve.api.responses import MAX_BODY_BYTES, as_json
from lbctl.serve.api.streams import ANONYMOUS_STREAMS
from lbctl.xds.protocol.idle_connections import IdleConnections
from lbctl.xds.protocol.peer import UNIX
from lbctl.xds.protocol.private_socket import BindError, PrivateSocket

AGE = "x-lbctl-age"
"""Header in a follower's responses: seconds since the leader's last heartbeat."""
_TURNS_OF_AN_ACCEPT = 3
"""Number of event-loop turns between accepting a connection and registering it with the server. If the listener is
closed in between, Python 3.11 does not close the connection."""
_GRACE = 1.0
"""Grace period in seconds for unfinished responses when the API stops."""
_MAX_HEADERS = 64
"""Maximum number of lines in a request's head. Each line has at most 8,190 bytes."""
_LINGERING = 0.5
"""Maximum time in seconds spent reading the rest of a rejected body, so that the sender can read the response."""


_LOG = logging.getLogger("lbctl.serve.http")
_LOG.addFilter(InvalidRequests("the API"))


class ApiServer:
    """The HTTP server. Its only state is its sockets."""

    def __init__(self, serving: Serving, access: ApiAccess) -> None:
        self._serving = serving
        self._access = access
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._socket: PrivateSocket | None = None
        self._connections: ConnectionLimit
        self._handshakes: asyncio.Task[None] | None = None
        """Closes connections whose TLS handshake does not complete, if there are many of them."""

    async def start(self) -> int:
        """Bind the listener, start serving, and return the port; 0 for a Unix socket.

        Raises OSError and BindError if the address cannot be bound.
        """
        checks = Authorization(self._serving, self._access)
        app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[counted, as_json, checks.known_host, checks.allowed]
        )
        app.on_response_prepare.append(self._say_age)
        app[SERVING] = self._serving
        app[ANONYMOUS_STREAMS] = Counter()
        for route in ROUTES:
            if route.method == "GET":
                allow_head = route.answer != "text/event-stream"
                app.router.add_get(route.path, handler_of(route, self._serving), allow_head=allow_head)
            else:
                app.router.add_route(route.method, route.path, handler_of(route, self._serving))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_GRACE,
            keepalive_timeout=IDLE,
            lingering_time=_LINGERING,
            max_headers=_MAX_HEADERS,
            logger=_LOG,
        )
        await self._runner.setup()
        try:
            self._listening = await self._listen(self._runner)
        except (OSError, BindError):
            await self.stop()
            raise
        name = self._listening.sockets[0].getsockname()
        port = int(name[1]) if isinstance(name, tuple) else 0
        if port and self._access.tls:
            self._handshakes = asyncio.create_task(IdleConnections(port, self._connections.clients).run())
        return port

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None
        bind, tls, loop = self._access.bind, self._access.tls, asyncio.get_running_loop()
        self._connections = ConnectionLimit(runner.server, patience=FIRST_REQUEST)
        protocol = self._connections.protocol
        patience = FIRST_REQUEST if tls else None
        if bind.path:
            self._socket = PrivateSocket(Path(bind.path))
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.open(lambda place: _bind(listening, place.removeprefix(UNIX)))
            except BindError:
                listening.close()
                raise
            return await loop.create_unix_server(protocol, sock=listening, ssl=tls, ssl_handshake_timeout=patience)
        return await loop.create_server(protocol, bind.host, bind.port, ssl=tls, ssl_handshake_timeout=patience)

    async def stop(self) -> None:
        """Close the listening socket, give unfinished responses a moment to complete, and close every connection."""
        if self._handshakes is not None:
            self._handshakes.cancel()
        if self._listening is not None:
            listening, self._listening = self._listening, None
            for accepting in listening.sockets:
                asyncio.get_running_loop().remove_reader(accepting)
            for _ in range(_TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            listening.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _say_age(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add a header with the maximum age of a follower's response."""
        if request.method in ("GET", "HEAD") and (age := self._serving.age()) is not None:
            response.headers[AGE] = f"{age:.3f}"


def _bind(listening: socket.socket, path: str) -> None:
    listening.bind(path)
    listening.listen()

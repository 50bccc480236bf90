"""The agent's control socket, which serves HTTP on a Unix socket that only the agent's user can connect to.

`GET /status` returns the health. `POST /drain` begins a drain and responds when it is complete, or after `wait`
seconds. `POST /readmit` ends a drain and clears remembered faults.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from aiohttp import web

from lbctl.agent.http import document, runner
from lbctl.agent.replica_watch import ReplicaWatch
from lbctl.base.foreign_json import InvalidJsonError, parse_object, shaped
from lbctl.xds.protocol.private_socket import PrivateSocket

NAME = "agent.sock"
"""Name of the socket in the state directory."""
_MAX_BODY_BYTES = 4096
_MAX_WAIT = 30 * 24 * 3600.0
"""Maximum value of `wait`, in seconds."""


class ControlSocket:
    """Serves the control socket from `start` until `close`."""

    def __init__(self, directory: str, watch: ReplicaWatch) -> None:
        self._watch = watch
        self._socket = PrivateSocket(Path(directory).absolute() / NAME)
        self._runner = runner(self.application())
        self._listening: asyncio.Server | None = None

    def application(self) -> web.Application:
        """Return an application with the routes."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/status", self._status)
        app.router.add_post("/drain", self._drain)
        app.router.add_post("/readmit", self._readmit)
        return app

    async def start(self) -> None:
        """Listen. Raises BindError."""
        await self._runner.setup()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

        def bind(address: str) -> None:
            listening.bind(address.removeprefix("unix:"))
            listening.listen()

        try:
            self._socket.open(bind)
        except BaseException:
            listening.close()
            raise
        server = self._runner.server
        assert server is not None
        self._listening = await asyncio.get_running_loop().create_unix_server(server, sock=listening)

    async def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._listening is not None:
            self._listening.close()
        self._socket.close()
        await self._runner.cleanup()

    async def _status(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({**document(self._watch.health), "in_flight": self._watch.in_flight})

    async def _drain(self, request: web.Request) -> web.StreamResponse:
        try:
            wait = shaped(parse_object(await request.read()), {"wait": float}).get("wait", 0.0)
        except InvalidJsonError as error:
            return web.json_response({"error": str(error)}, status=400)
        if not 0 <= wait <= _MAX_WAIT:
            return web.json_response({"error": f"wait must be between 0 and {_MAX_WAIT:g}"}, status=400)
        result = await self._watch.drain(wait)
        return web.json_response(
            {
                "drained": result.drained,
                "waited_s": round(result.waited, 1),
                "in_flight": result.in_flight,
                "ended": result.ended,
            }
        )

    async def _readmit(self, _request: web.Request) -> web.StreamResponse:
        self._watch.readmit()
        return web.json_response(document(self._watch.health))

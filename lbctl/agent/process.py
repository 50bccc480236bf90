"""The agent process, which includes its listeners, the monitoring of the replica, and its shutdown.

SIGTERM starts a drain. The servers keep responding until the drain is complete or the deadline has passed, and the
process then exits with 0. A second SIGTERM, or SIGINT, terminates the process immediately.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

from lbctl.agent import saved_faults
from lbctl.agent.access import ClientNetworks
from lbctl.agent.agent_checks import AgentCheckServer
from lbctl.agent.control_socket import ControlSocket
from lbctl.agent.engine import EngineWatch
from lbctl.agent.gpus import GpuWatch
from lbctl.agent.http import AgentHttpServer
from lbctl.agent.replica_watch import ReplicaWatch
from lbctl.agent.requests import EngineRequests
from lbctl.agent.settings import AgentSettings
from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.runtime import log
from lbctl.runtime.descriptors import AcceptErrors
from lbctl.runtime.guard import Guard
from lbctl.xds.protocol.private_socket import BindError

_MAX_PAUSE = 2.0
"""Maximum delay before a failed watch is restarted, in seconds."""


class CannotStartError(Exception):
    """The agent cannot start. The message states the reason."""


class AgentProcess:
    """A running agent."""

    def __init__(self, settings: AgentSettings) -> None:
        """Raises CannotStartError."""
        self._settings = settings
        self._make_state()
        self._gpus = GpuWatch(settings.devices)
        memory = saved_faults.load(settings.state, settings.engine, settings.devices)
        save = partial(saved_faults.save, settings.state, settings.engine)
        engine, requests = EngineWatch(settings), EngineRequests(settings)
        self._watch = ReplicaWatch(settings, self._gpus, engine, requests, memory, save)
        networks = ClientNetworks.parse(settings.allow)
        try:
            self._http = AgentHttpServer(settings, networks, self._watch)
        except OSError as error:
            raise CannotStartError(f"{settings.tls_cert}, {settings.tls_key}: {reason_of(error)}") from None
        watch = self._watch
        self._checks = AgentCheckServer(settings.check_bind, networks, lambda: watch.health.assessment, watch.answered)
        self._control = ControlSocket(settings.state, watch)

    async def run(self) -> int:
        """Serve until a signal arrives, and return the exit code. Raises CannotStartError."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        term, end = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, lambda: (end if term.is_set() else term).set())
        loop.add_signal_handler(signal.SIGINT, end.set)
        self._gpus.start()
        try:
            await self._listen()
            guard = Guard(longest_pause=_MAX_PAUSE)
            reading = guard.start("readings", self._watch.run)
            await _first(term, end)
            if not end.is_set():
                await self._drain(end)
            reading.cancel()
        finally:
            self._gpus.stop()
            self._checks.close()
            await self._control.close()
            await self._http.close()
        return 0

    def _make_state(self) -> None:
        """Create the state directory. The systemd units use subdirectories of the default directory.

        Raises CannotStartError.
        """
        try:
            Path(self._settings.state).mkdir(mode=0o711, parents=True, exist_ok=True)
        except OSError as error:
            reason = f"the state directory {self._settings.state} cannot be created: {reason_of(error)}"
            raise CannotStartError(f"{reason} (set --state)") from None

    async def _listen(self) -> None:
        """Listen on all addresses. Raises CannotStartError."""
        settings = self._settings
        try:
            await self._control.start()
        except BindError as error:
            raise CannotStartError(f"{error} (set --state to a directory that only this agent uses)") from None
        try:
            await self._http.start()
        except OSError as error:
            raise _cannot_listen("HTTP", settings.bind, error) from None
        try:
            await self._checks.start()
        except OSError as error:
            raise _cannot_listen("agent checks", settings.check_bind, error) from None
        log.event(
            "the agent is listening",
            http=settings.bind,
            agent_checks=settings.check_bind,
            tls=bool(settings.tls_cert) or None,
            engine=settings.engine,
            state=settings.state,
        )
        if settings.check_bind.on_loopback and not settings.bind.on_loopback:
            log.event("agent checks use neither TLS nor a token: without --allow, they are answered only on loopback")

    async def _drain(self, end: asyncio.Event) -> None:
        """Drain the replica until the deadline, or until `end` is set."""
        deadline = self._settings.drain_deadline
        log.event("draining before the agent exits", deadline=f"{deadline:g}s")
        drain = asyncio.create_task(self._watch.drain(deadline, is_saved=False))
        stop = asyncio.create_task(end.wait())
        await asyncio.wait((drain, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not drain.done():
            drain.cancel()
            return
        result = drain.result()
        left = "unknown" if result.in_flight is None else result.in_flight
        if result.drained:
            log.event("the replica is drained", seconds=round(result.waited, 1), in_flight=left)
        else:
            log.warn("the replica is not drained", seconds=round(result.waited, 1), in_flight=left)


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _cannot_listen(what: str, bind: Address, error: OSError) -> CannotStartError:
    return CannotStartError(f"{what}: cannot listen on {bind}: {reason_of(error)}")

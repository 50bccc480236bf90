"""The `lbctl serve` process: starts, runs until it receives a signal, and shuts down cleanly.

At startup, the process locks the state (a second process waits for the lock) and reads the files. If the files are
invalid, it publishes the last valid fleet from the saved state. Only then does it start listening for proxies, so that
no proxy ever gets an incomplete fleet. On SIGHUP, it rereads the files; on SIGTERM, it exits. `wiring` creates the
parts that run in the process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lbctl import __version__
from lbctl.base.paths import exists
from lbctl.model.fleet import FleetSource
from lbctl.runtime import log
from lbctl.runtime.descriptors import AcceptErrors, raise_limit
from lbctl.runtime.errors import CannotListenError, MissingPathError, UnknownStateError
from lbctl.runtime.guard import Work, end_tasks, until_one_ends
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.api.views import NO_FLEET
from lbctl.serve.fleet.reader import read_control
from lbctl.serve.membership import check_state_is_known, join, shared_store
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options, settings
from lbctl.serve.wiring import Services
from lbctl.store.interface import StateStore, StoreError
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore
from lbctl.targets.load import Loaded
from lbctl.xds.protocol.allocator import return_large_pieces
from lbctl.xds.protocol.node_status import NodeStatus

__all__ = ["App", "Options", "run"]

_MAX_SHUTDOWN = 9.5
"""Seconds after the first signal within which the process exits, even if a task is still hanging."""
_DRAIN_POLL = 1.0
"""Maximum time between two checks of drain deadlines, in seconds."""
_SWITCH_INTERVAL = 0.001
"""Maximum time in seconds for which a thread that is reading files may block the serving thread. Python's default is
0.005."""


def run(options: Options) -> int:
    """Run the control plane until it exits, log to standard error, and return the exit code."""
    handler = log.start(sys.stderr)
    raise_limit()
    return_large_pieces()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        return asyncio.run(App(options).run())
    finally:
        log.stop(handler)


class App:
    """One process of the control plane."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._metrics = Metrics()
        self._nodes = NodeStatus()
        self._endpoints = Endpoints(options, self._nodes, self._metrics)
        self._stop = asyncio.Event()
        self._cannot_listen = False
        self._reload_wanted = asyncio.Event()
        self._state: SavedState | None = None
        self._services: Services | None = None

    async def run(self) -> int:
        """Serve until a signal ends the process, and return the exit code.

        The code is 0 after a signal. It is 1 if this user cannot access a required path, if the state is unknown or
        unusable, or if an address cannot be bound. Any other fatal error is raised.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_soon)
        work = loop.create_task(self._work(), name="work")
        stop = loop.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            return int(self._cannot_listen)
        except (CannotListenError, MissingPathError, UnknownStateError):
            return 1
        except StoreError as error:
            log.error(str(error))
            return 1
        finally:
            await self._shut_down(work, stop)

    def _request_stop(self, number: signal.Signals) -> None:
        """Start an orderly shutdown. A second signal ends the process immediately."""
        log.event("ending", signal=number.name)
        self._stop.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        last_resort = threading.Timer(_MAX_SHUTDOWN, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()

    async def _shut_down(self, *tasks: asyncio.Task[Any]) -> None:
        services = self._services
        if services is not None:
            services.api.end()
            services.picker.end()
        await end_tasks(tasks)
        await self._endpoints.close()
        if services is not None:
            services.traffic.close()
            await services.discovery.stop()
            if services.leads:
                await services.live.end()
                await services.saving.save()
        if self._state is not None:
            await self._state.close()
        log.event("ended")

    # ── The start ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        services = await self._start()
        tasks: Mapping[str, Work] = {
            "watch of the files": lambda: self._reload_changed_files(services),
            "reload at SIGHUP": lambda: self._reload_at_signals(services),
            "discovery": lambda: self._apply_discovery(services),
            "deadlines of drains": lambda: self._apply_drain_deadlines(services),
            "address of the picker": lambda: self._apply_picker_address(services),
            **services.tasks(),
        }
        await until_one_ends([services.guard.start(name, work) for name, work in tasks.items()])

    async def _start(self) -> Services:
        options = self._options
        log.event("starting", version=__version__, paths=",".join(options.paths), dry_run=options.dry_run or None)
        section = await asyncio.to_thread(read_control, options.paths)
        check_state_is_known(options, section)
        shared = await shared_store(options, section.source)
        if shared is None:
            self._state = SavedState(await self._store(section.source), log.warn)
            await self._state.lead(log.warn)
        else:
            self._state = SavedState(shared.store, log.warn, shared.authority)
            await join(shared)
        services, saved = await wiring.build_from(
            options, self._endpoints, self._metrics, self._nodes, self._state, shared
        )
        self._services = services
        await services.reconciler.start(saved.fleet, partial(self._open_endpoints, services))
        gc.freeze()
        # A reload creates many objects, and the fleet that it replaces is freed without a garbage collection.
        gc.set_threshold(max(gc.get_threshold()[0], gc.get_freeze_count() // 2), *gc.get_threshold()[1:])
        gc.enable()
        if services.live.served is None:
            if shared is None and not all(exists(path) for path in options.paths):
                raise MissingPathError
            hint = (
                "a previously published fleet is in the state directory that was configured at that time (--state or "
                "control.state)"
            )
            log.error(NO_FLEET, state=options.state, hint=hint)
            if self._endpoints.opened.api is None:
                await self._open_api(services, (await asyncio.to_thread(read_control, options.paths)).source)
        return services

    async def _store(self, source: FleetSource | None) -> StateStore:
        """Return the store selected by the options. Raises StoreError.

        A dry run does not store anything, because another process may be using the state.
        """
        if self._options.dry_run:
            return MemoryStore()
        directory = Path(self._options.state) if self._options.state else settings(self._options, source).state
        return await asyncio.to_thread(SqliteStore.open, directory)

    async def _open_endpoints(self, services: Services, loaded: Loaded, built: bool) -> None:
        """Open the API once the files have been read, and the xDS port once there are resources to serve."""
        try:
            if self._endpoints.opened.api is None:
                await self._open_api(services, loaded.source)
            if built and not self._options.dry_run:
                publisher, member = services.publisher, services.member
                publisher.open(
                    await self._endpoints.open_xds(
                        loaded.source,
                        services.live.previous_snapshot,
                        services.load_reports,
                        services.request_logs,
                        lambda: member is not None and member.catching_up,
                    )
                )
        except CannotListenError:
            self._cannot_listen = True
            self._stop.set()
            raise

    async def _open_api(self, services: Services, source: FleetSource | None) -> None:
        await self._endpoints.open_api(source, services.api, own_token=not self._options.dry_run)

    # ── While it runs ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _reload_changed_files(self, services: Services) -> None:
        async for _ in services.watcher.changes():
            await self._reload(services)

    async def _apply_discovery(self, services: Services) -> None:
        live = services.live
        async for discovered in services.discovery.changes():
            await live.apply(replace(live.inputs, discovered=discovered), "discovery", save=False)
            live.save_soon()

    async def _apply_drain_deadlines(self, services: Services) -> None:
        while True:
            live = services.live
            left = live.seconds_to_next_deadline()
            await asyncio.sleep(_DRAIN_POLL if left is None else min(_DRAIN_POLL, max(0.05, left)))
            if left is not None and left <= _DRAIN_POLL:
                await live.apply(live.inputs, "the deadline of a drain", save=False)
                live.save_soon()

    async def _apply_picker_address(self, services: Services) -> None:
        async for _ in services.picker.changes():
            await services.live.apply(services.live.inputs, "the address of the picker", save=False)

    def _reload_soon(self) -> None:
        log.event("reloading the files", signal="SIGHUP")
        self._reload_wanted.set()

    async def _reload_at_signals(self, services: Services) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            await self._reload_and_retry(services)

    async def _reload_and_retry(self, services: Services) -> None:
        """Reload the files and resend resources that Envoys have rejected."""
        await self._reload(services)
        offered_again, last_reload = self._endpoints.retry_rejected(), services.reconciler.last_reload
        result = last_reload.result if last_reload else None
        log.event("the files were read", result=result, offered_again=offered_again or None)

    async def _reload(self, services: Services) -> None:
        await services.reconciler.reload()
        served = services.live.served
        keys = self._endpoints.restart_needed(served.loaded.source) if served else ()
        if keys:
            log.warn("these changes take effect after a restart", keys=",".join(keys))
        self._endpoints.renew()

"""A picker process: its servers, and the link to the control plane from which it receives tables.

A child of `lbctl serve` inherits a socket for this link and exits when the socket is closed. As a result, no picker is
left running with an old table, even if `serve` is killed. A picker on another machine keeps its tables while the
control plane is unreachable. Picks never wait for the link, because they only use data in memory.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls, picker_http, picker_http_remote
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.table import PoolTable
from lbctl.picker import wire
from lbctl.picker.admission import QuestionKey
from lbctl.picker.child_link import explanation_line, report
from lbctl.picker.connection import QUESTION_TIMEOUT, PickerConnection, WireProtocol
from lbctl.picker.connection_limits import ConnectionLimits
from lbctl.picker.datagrams import DatagramReceiver, bound
from lbctl.picker.envoy_access_log import EnvoyEnds
from lbctl.picker.exchange import Exchange
from lbctl.picker.grpc_server import CannotBindError, GrpcServer
from lbctl.picker.health import PickerHealth
from lbctl.picker.http_api import HttpApi, RequestEnds
from lbctl.picker.http_protocol import HttpProtocol
from lbctl.picker.launch import use_seed
from lbctl.picker.memory_saver import MemorySaver
from lbctl.picker.peer_tls import PeerTls
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.saved_memory import INTERVAL, SavedMemory
from lbctl.picker.service import PickService
from lbctl.picker.shared_memory import JOIN_TIMEOUT, SharedMemory
from lbctl.picker.spop import FIRST_BYTE, SpopApi, SpopProtocol
from lbctl.picker.statistics import page
from lbctl.runtime import log
from lbctl.runtime.guard import Guard
from lbctl.runtime.net.http_certificate import HttpCertificate
from lbctl.xds.protocol.idle_connections import IdleConnections

if TYPE_CHECKING:
    from lbctl.xds.protocol.credentials import ServerCredentials

_GRACE = 1.0
"""Seconds that open streams, and then the last write of the memory, are given to finish when the process stops."""
_SWEEP = 10.0
_READY_POLL = 0.1
_QUEUE_INTERVAL = 0.05
"""Seconds between checks for queued requests that have waited too long and for replicas whose suspicion has ended."""
_BACKLOG = 4_096
"""Maximum number of connections waiting to be accepted. nginx opens a connection for each request that has to wait."""

Link = Callable[[TableFollower, PickService], Coroutine[Any, Any, None]]
"""Coroutine function that passes lines to the follower until the process should exit."""


@dataclass(frozen=True, slots=True)
class PickerEndpoints:
    """Addresses that a picker listens on."""

    bind: Address
    """Address for gRPC."""
    tls: ServerTls | None = None
    """TLS for gRPC, and for HTTP on non-loopback addresses; None for plaintext connections."""
    datagrams: socket.socket | None = None
    """Datagram socket inherited from a parent process, which also reserves the other ports; None if the process has no
    parent."""

    @property
    def http(self) -> Address:
        """Address for HTTP, SPOP and datagrams."""
        return picker_http(self.bind)

    @property
    def remote_http(self) -> Address | None:
        """Address for HTTP from Envoys on other machines; None if the picker serves only this machine."""
        return picker_http_remote(self.bind)


class PickerProcess:
    """The parts of a picker process."""

    def __init__(
        self, places: PickerEndpoints, link: Link, own: str, *,
        is_alone: bool = False, memory: Path | None = None, pool: str | None = None,
    ) -> None:  # fmt: skip
        """`own` is this process's ID among the pickers.

        `is_alone`: whether it runs without a parent `serve` process and therefore serves its reports over HTTP.
        `memory` is the directory in which the affinity memory is saved; None if it is not saved. `pool` is the only
        pool to serve; None to serve all pools. Raises CannotBindError.
        """
        self._places = places
        self._link = link
        self._affinity = AffinityMemory(records_changes=True)
        self._saver = _saver_of(memory, self._affinity) if memory is not None else None
        self.service = PickService(affinity=self._affinity, is_joining=True)
        self._is_alone = is_alone
        service = self.service
        self._guard = Guard(service.statistics.task_failed)
        credentials = _credentials(places.tls)
        self._certificate = HttpCertificate(places.tls)
        self._watches: list[asyncio.Task[Any]] = []
        self._join_timer: asyncio.TimerHandle | None = None
        self._shared = SharedMemory(own, self._affinity, service.merge_affinity, service.joined)
        self.exchange = Exchange(
            self._shared, service.counts, service.merge, PeerTls.of(places.tls), self._guard,
            service.demands, service.merge_demands,
        )  # fmt: skip
        self._key = QuestionKey()
        self.follower = TableFollower(
            self._set_table, service.sampled, self.exchange.follow, service.assigned, self._use_key, pool=pool
        )
        health = PickerHealth(lambda: service.is_ready, _polled)
        ends = EnvoyEnds(self.service)
        is_guarded = places.tls is not None and places.tls.client_ca is not None
        self._key_afar = None if is_guarded else self._key
        handlers = self.exchange.handler(), self._shared.handler(), ends.handler()
        self._grpc = GrpcServer(self.service, health, credentials, *handlers, key=self._key_afar)
        self._ends = RequestEnds(self.service)

    async def run(self) -> int:
        """Serve until a signal arrives or the link ends, then return the exit code. Raises CannotBindError."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await self._listen()
        gc.freeze()
        works = (stop.wait(), self._link(self.follower, self.service))
        tasks: list[asyncio.Task[Any]] = [loop.create_task(work) for work in works]
        tasks += [self._guard.start("sweep of lost picks", self._sweep), *self._watches]
        tasks += [self._guard.start("sharing of the memory", self._share)]
        if self._saver is not None:
            tasks.append(self._guard.start("saving", partial(self._save, self._saver)))
        tasks.append(self._guard.start("queues", self._serve_queues))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        self.service.dismiss_waiting()
        self.exchange.close()
        await self._grpc.stop(_GRACE)
        self._take_changes()
        if self._saver is not None:
            await self._saver.finish(_GRACE)
        for task in done:
            task.result()
        return 0

    def _set_table(self, pool: str, table: PoolTable | None) -> None:
        if self._join_timer is None:
            self._join_timer = asyncio.get_running_loop().call_later(JOIN_TIMEOUT, self.service.joined)
        self.service.set_table(pool, table)

    def _use_key(self, key: str) -> None:
        if self._is_alone and not self.service.tables:
            use_seed(key)
        self._key.set(key)

    async def _listen(self) -> None:
        """Start listening on all addresses. Raises CannotBindError."""
        loop, http, remote = asyncio.get_running_loop(), self._places.http, self._places.remote_http
        api = HttpApi(self.service, self._page, key=self._key_afar)
        local = local_paths(self.service) if self._is_alone else {}
        local_api = HttpApi(self.service, self._page, local, http, self._key)
        spop = SpopApi(self.service, self._key)
        datagrams = self._places.datagrams
        shared = datagrams is not None
        try:
            await loop.create_server(
                connections(local_api, spop=spop), http.host, http.port, backlog=_BACKLOG, reuse_port=shared
            )
            DatagramReceiver(bound(http) if datagrams is None else datagrams, self._ends.received)
        except OSError as error:
            raise CannotBindError(f"the picker cannot listen on {http}: {reason_of(error)}") from None
        if remote is not None:
            tls = self._certificate.context
            patience = QUESTION_TIMEOUT if tls else None
            limits = ConnectionLimits()
            try:
                await loop.create_server(
                    connections(api, limits), remote.host, remote.port, backlog=_BACKLOG, ssl=tls,
                    ssl_handshake_timeout=patience, reuse_port=shared,
                )  # fmt: skip
            except OSError as error:
                raise CannotBindError(f"the picker cannot listen on {remote}: {reason_of(error)}") from None
            if tls:
                watch = IdleConnections(remote.port, limits.clients).run
                self._watches.append(self._guard.start("handshakes that never finish", watch))
        await self._grpc.start(self._places.bind, shares_port=shared)
        log.event("the picker listens", grpc=self._places.bind, http=http, tls=self._places.tls is not None or None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.service.sweep()
            self._certificate.renew()  # gRPC reads the same files and logs an error if they are not usable

    async def _serve_queues(self) -> None:
        while True:
            await asyncio.sleep(_QUEUE_INTERVAL)
            self.service.share_budgets(1 + self.exchange.peers)
            self.service.serve_queues()

    async def _share(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self._take_changes()

    def _take_changes(self) -> None:
        """Send new entries to the other pickers and queue them for saving."""
        changes = self._affinity.take_changes()
        self._shared.publish(changes)
        if self._saver is not None:
            self._saver.add(changes)

    async def _save(self, saver: MemorySaver) -> NoReturn:
        while True:
            await asyncio.sleep(INTERVAL)
            await saver.write()
            self.service.unsaved = saver.failure

    def _page(self) -> bytes:
        gauges = {
            "lbctl_picker_streams": self._grpc.streams,
            "lbctl_picker_peers": self.exchange.peers,
            "lbctl_picker_memory_entries": len(self._affinity),
            "lbctl_picker_memory_unsaved": bool(self.service.unsaved),
            "lbctl_pick_open": self.service.open_picks,
            "lbctl_picker_malformed_datagrams": self._ends.malformed,
            "lbctl_picker_refused_questions": self._key.refused,
        }
        return page(self.service.statistics, gauges)


def _saver_of(directory: Path, memory: AffinityMemory) -> MemorySaver:
    """Restore a memory from a directory and return a saver for it."""
    files = SavedMemory(directory, time.monotonic(), time.time())
    if count := files.restore(memory, time.monotonic()):
        log.event("the picker has restored its memory", entries=count)
    return MemorySaver(files)


def connections(
    api: HttpApi, limits: ConnectionLimits | None = None, spop: SpopApi | None = None
) -> Callable[[], PickerConnection]:
    """Return a function that creates one listener's connections. If `spop` is set, they also accept SPOP."""
    shared, http = limits or ConnectionLimits(), HttpProtocol(api.handle)

    def protocol(first_byte: int) -> WireProtocol:
        return http if spop is None or first_byte != FIRST_BYTE else SpopProtocol(spop)

    return lambda: PickerConnection(protocol, shared)


def local_paths(service: PickService) -> Mapping[str, Callable[[bytes], bytes]]:
    """Map each path to the function that handles its body, for use if the parent is not a `serve` on this machine."""
    return {wire.REPORT_PATH: lambda _: report(service), wire.EXPLAIN_PATH: partial(_explained, service)}


def _explained(service: PickService, body: bytes) -> bytes:
    """Return a line that explains a decision, or a line of kind `failed` if `body` cannot be read."""
    try:
        return explanation_line(service, {"number": 0, **wire.parse(body)})
    except wire.WireError as error:
        return wire.line("failed", why=str(error))


async def _polled() -> AsyncIterator[None]:
    while True:
        await asyncio.sleep(_READY_POLL)
        yield


def _credentials(tls: ServerTls | None) -> ServerCredentials | None:
    if tls is None:
        return None
    from lbctl.xds.protocol.credentials import CredentialsError, ServerCredentials

    try:
        return ServerCredentials(tls)
    except CredentialsError as error:
        raise CannotBindError(str(error)) from None

"""Runs the picker for `lbctl serve`: starts it when a pool needs it, sends it tables, reads its reports, and stops it.

The picker is a separate process, so that neither a reload nor a large scrape can delay a pick. If the picker exits or
does not report for ten seconds, the guard restarts it, with increasing delays. It has two minutes to send its first
report, because a restart would delay startup on a busy machine even more. In the meantime, the proxies fall back to
`otherwise`.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from lbctl.ir.address import Address
from lbctl.ir.proxies import ServerTls
from lbctl.picker import wire
from lbctl.picker.launch import command, environment
from lbctl.picker.messages import PickerQuestion
from lbctl.picker.reports import PickerReport, report_of
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.peers import local_peer
from lbctl.serve.picker.ports import CannotKeepError, PickerPorts

_SILENT = 10.0
"""Seconds without a report after which the picker is considered hung."""
_START_TIMEOUT = 120.0
"""Seconds without a first report after which the picker is considered to have failed to start."""
_ANSWER = 2.0
"""Timeout for an explanation, in seconds."""
_LAST_WORDS = 1.0
"""Seconds to wait for the last report from a process that has ended, and for a process that has closed its link to
exit."""
_STOP_TIMEOUT = 3.0
"""Grace period for the process to exit, in seconds. It may wait two seconds itself, for its streams and its disk."""
_NO_REPORT = PickerReport()


class PickerEndedError(Exception):
    """The picker has exited or is hung. The message states the reason."""


@dataclass(frozen=True, slots=True)
class PickerState:
    """State of the picker process."""

    pid: int | None = None
    """The picker's process ID; None if it is not running."""
    since: float | None = None
    """Time at which the picker was started, in seconds since the epoch; None if it is not running."""
    starts: int = 0
    """Number of times the picker has been started."""
    problem: str = ""
    """Reason why the last process ended; empty if one is running or none is needed."""
    report: PickerReport = _NO_REPORT
    """The picker's newest report."""
    heard: float | None = None
    """Time at which that report arrived, in seconds on the monotonic clock; None before the first one."""
    address: Address | None = None
    """The picker's listen address; None if it is not running."""


class PickerChild:
    """`places` returns the picker's listen address and its gRPC server's TLS settings.

    The result is None if no pool needs the picker. `key` returns the key for picker requests. `memory` returns the
    directory in which the picker saves its affinity memory; if it returns None or there is no key, the memory is not
    saved.
    """

    def __init__(
        self,
        feed: Feed,
        places: Callable[[], tuple[Address, ServerTls | None] | None],
        reported: Callable[[PickerReport], None],
        key: Callable[[], str] = str,
        memory: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self.state = PickerState()
        self._key = key
        self._memory = memory
        self._feed = feed
        self._places = places
        self._reported = reported
        self._news = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = count()
        self._failure = ""
        """Reason for its exit that the process reported; empty if it did not report one."""
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        """Maps each explanation request's number to the future for its answer."""
        self._ports: PickerPorts | None = None
        """The ports reserved for the process; None if none are needed."""

    def keeps(self, bind: Address) -> bool:
        """Return whether the ports for a picker at `bind` are reserved for the process."""
        return self._ports is not None and self._ports.bind == bind

    def close(self) -> None:
        """Release the ports."""
        self._keep_ports(None)

    def check_again(self) -> None:
        """Check again whether a picker is needed."""
        self._news.set()

    async def explain(self, question: PickerQuestion) -> Mapping[str, Any] | None:
        """Return the line that explains how the picker would handle a request; None if it does not arrive in time."""
        writer = self._writer
        if writer is None:
            return None
        number = next(self._numbers)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            writer.write(wire.question(question, number))
            async with asyncio.timeout(_ANSWER):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Run the picker while one is needed. Raises PickerEndedError."""
        while True:
            self._news.clear()
            places = self._places()
            self._keep_ports(places[0] if places is not None else None)
            if places is None:
                self.state = PickerState(starts=self.state.starts)
                await self._news.wait()
                continue
            await self._run(places)

    def _keep_ports(self, bind: Address | None) -> None:
        """Reserve exactly the ports for a picker at `bind`. Raises PickerEndedError."""
        if self._ports is not None and self._ports.bind != bind:
            self._ports.close()
            self._ports = None
        if self._ports is None and bind is not None:
            try:
                self._ports = PickerPorts(bind)
            except CannotKeepError as error:
                self.state = PickerState(starts=self.state.starts, problem=str(error))
                raise PickerEndedError(str(error)) from None

    async def _run(self, places: tuple[Address, ServerTls | None]) -> None:
        assert self._ports is not None, "the ports are reserved before the process starts"
        self._failure, datagrams = "", self._ports.datagrams.fileno()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = await asyncio.create_subprocess_exec(
                *command(theirs.fileno(), datagrams),
                pass_fds=(theirs.fileno(), datagrams), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                env=environment(self._key()),
            )  # fmt: skip
            theirs.close()
            starts, problem = self.state.starts + 1, self.state.problem
            self.state = PickerState(process.pid, time.time(), starts, problem, address=places[0])
            try:
                await self._serve(ours.dup(), process, places)
            except PickerEndedError as error:
                self.state = PickerState(starts=self.state.starts, problem=str(error))
                raise
            finally:
                await _end(process)

    async def _serve(
        self, link: socket.socket, process: asyncio.subprocess.Process, places: tuple[Address, ServerTls | None]
    ) -> None:
        """Send tables to the process until it is not needed anymore. Raises PickerEndedError."""
        reader, writer = await asyncio.open_connection(sock=link, limit=wire.MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        works: dict[str, asyncio.Task[Any]] = {
            "needed": loop.create_task(self._until_others(places)),
            "feed": loop.create_task(self._send(writer, places)),
            "reports": loop.create_task(self._receive(reader)),
            "end": loop.create_task(process.wait()),
        }
        try:
            await asyncio.wait(works.values(), return_when=asyncio.FIRST_COMPLETED)
            ending = [works["end"], works["reports"]]
            if any(task.done() for task in ending):
                await asyncio.wait(ending, timeout=_LAST_WORDS)
        finally:
            for task in works.values():
                task.cancel()
            await asyncio.gather(*works.values(), return_exceptions=True)
            self._writer = None
            writer.close()
        if works["needed"].cancelled():
            raise PickerEndedError(self._failure or _reason(works["end"], works["reports"]))

    async def _until_others(self, places: tuple[Address, ServerTls | None]) -> None:
        """Wait until no picker is needed, or until a picker is needed at a different address."""
        while self._places() == places:
            self._news.clear()
            await self._news.wait()

    async def _send(self, writer: asyncio.StreamWriter, places: tuple[Address, ServerTls | None]) -> None:
        bind, tls = places
        own = secrets.token_hex(8)
        files = [tls.certificate, tls.key, tls.client_ca, tls.client_crl] if tls else None
        memory = self._memory() if self._key() else None
        line = wire.line("settings", id=own, bind=[bind.host, bind.port], tls=files, memory=memory and str(memory))
        writer.write(line)
        self._writer = writer
        with suppress(ConnectionError), self._feed.subscribe(local_peer(own, bind), trusted=True) as subscription:
            while (lines := await subscription.next()) is not None:
                writer.write(lines)
                await writer.drain()

    def _answer(self, explained: Mapping[str, Any]) -> None:
        waiting = self._asked.get(explained["number"])
        if waiting is not None and not waiting.done():
            waiting.set_result(explained)

    async def _receive(self, reader: asyncio.StreamReader) -> str:
        """Read reports until they stop arriving, and return the reason."""
        with suppress(ConnectionError, wire.WireError):
            while True:
                is_starting = self.state.heard is None
                try:
                    text = await _line(reader, _START_TIMEOUT if is_starting else _SILENT)
                except TimeoutError:
                    if is_starting:
                        return f"the picker has not started within {_START_TIMEOUT:g} s"
                    return f"the picker has reported nothing for {_SILENT:g} s"
                if not text:
                    break
                values = wire.parse(text)
                if values["kind"] == "explained":
                    self._answer(values)
                    continue
                if values["kind"] == "failed":
                    self._failure = str(values["why"])
                    continue
                report = report_of(values)
                self.state = replace(self.state, report=report, heard=time.monotonic(), problem="")
                self._reported(report)
        return "the picker has closed its connection to serve"


async def _line(reader: asyncio.StreamReader, timeout: float) -> bytes:
    """Return the next line. Raises TimeoutError if none arrives within `timeout` seconds.

    The function checks once more after the timeout, because lines may have arrived while this process was suspended.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            return await reader.readline()
    async with asyncio.timeout(_LAST_WORDS):
        return await reader.readline()


def _reason(end: asyncio.Task[Any], reports: asyncio.Task[Any]) -> str:
    if end.done() and not end.cancelled():
        return f"the picker exited with code {end.result()}"
    if reports.done() and not reports.cancelled():
        return str(reports.result())
    return "the picker is not reading its input"


async def _end(process: asyncio.subprocess.Process) -> None:
    """Stop the process: send SIGTERM, and then SIGKILL if it does not exit."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

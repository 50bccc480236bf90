"""Runs `lbctl serve` and the proxy until a signal arrives or one of them exits.

The command always terminates both processes, starting with the proxy.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISSOCK
from typing import Any

from lbctl.apply.listening_sockets import session_listens
from lbctl.ir.address import Address
from lbctl.targets import xds_kinds
from lbctl.up.child import CannotShowError, CannotStartError, Child
from lbctl.up.launchers import PID_FILE, XDS_SOCKET

_READY_TIMEOUT = 60.0
"""Maximum time until the fleet is ready, in seconds. This time is long enough for a busy machine."""
_PROXY_STOP_TIMEOUT, _SERVE_STOP_TIMEOUT = 5.0, 12.0
"""Seconds between SIGTERM and SIGKILL. `serve` exits within ten seconds."""
_POLL = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Show = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs in one run."""

    kind: str
    """Kind of the proxy, which is also its name in the output."""
    proxy: Sequence[str]
    """The proxy's command."""
    paths: Sequence[str]
    """The fleet's files."""
    state: Path
    """State directory of `serve`."""
    place: Path
    """Private directory."""
    listeners: Sequence[Address]
    """Addresses on which the proxy accepts clients."""
    options: Sequence[str] = ()
    """Additional options for `serve`."""


class NotReadyError(Exception):
    """The fleet did not become ready in time."""


class UpError(Exception):
    """One of the programs exited or did not become ready. The message states the program's name and the reason."""


async def run(programs: Programs, show: Show, body: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run both programs, and run `body` once clients can be served, until it ends or a signal arrives.

    Return whether `body` has ended. Raises its exception, and UpError if one of the programs exits.
    """
    stop = asyncio.Event()
    serve, proxy = _children(programs, show)
    _stop_at_signals(stop, (serve, proxy))
    try:
        await serve.start()
        if programs.kind in xds_kinds() and not await _first(stop, _listens(programs.place), serve):
            return False
        proxy_id = await proxy.start()
        (programs.place / PID_FILE).write_text(str(proxy_id), encoding="ascii")
        ready = await _first(stop, _ready(programs, proxy_id), serve, proxy)
        return ready and await _first(stop, body(), serve, proxy)
    except NotReadyError:
        tails = "".join(_tail(child) for child in (serve, proxy))
        raise UpError(f"the fleet was not ready within {_READY_TIMEOUT:g} s{tails}") from None
    except (CannotStartError, CannotShowError) as error:
        raise UpError(str(error)) from None
    finally:
        try:
            await proxy.end(_PROXY_STOP_TIMEOUT)
        finally:
            await serve.end(_SERVE_STOP_TIMEOUT)


def _children(programs: Programs, show: Show) -> tuple[Child, Child]:
    place = programs.place
    command = [
        *(sys.executable, "-m", "lbctl", "serve", *programs.paths),
        *("--state", str(programs.state), "--xds-bind", f"unix:{place / XDS_SOCKET}", *programs.options),
    ]
    return (
        Child("serve", command, log_of(place, "serve"), show),
        Child(programs.kind, programs.proxy, log_of(place, programs.kind), show),
    )


def log_of(place: Path, name: str) -> Path:
    """Return the file with a program's output, in the private directory."""
    return place / f"{name}.log"


def _stop_at_signals(stop: asyncio.Event, children: Iterable[Child]) -> None:
    """Shut down in order at the first signal, and immediately at the second, even if the parent ignores signals."""

    def stop_or_kill() -> None:
        if stop.is_set():
            for child in children:
                child.kill()
        stop.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop_or_kill)


async def _listens(place: Path) -> None:
    """Wait until `serve` is listening.

    An Envoy started earlier would log a warning for every stream that it cannot open. Raises NotReadyError.
    """
    try:
        async with asyncio.timeout(_READY_TIMEOUT):
            while not _is_socket(place / XDS_SOCKET):
                await asyncio.sleep(_POLL)
    except TimeoutError:
        raise NotReadyError from None


async def _ready(programs: Programs, session: int) -> None:
    """Wait until `serve` has a fleet for proxies and the proxy accepts clients.

    `session` is the session of the proxy's processes. A successful connection is not sufficient, because another
    program such as `nginx -t` may be using the port for a moment. Clients' connections would then be closed when that
    program exits. Raises NotReadyError.
    """
    try:
        async with asyncio.timeout(_READY_TIMEOUT):
            await _listens(programs.place)
            for address in programs.listeners:
                while not (await _accepts(address) and _is_own(address, session)):
                    await asyncio.sleep(_POLL)
    except TimeoutError:
        raise NotReadyError from None


async def _first(stop: asyncio.Event, work: Coroutine[Any, Any, None], *children: Child) -> bool:
    """Wait for a signal (False) or for `work` to end (True). Raises UpError if a program exits first."""
    stopped, working = asyncio.create_task(stop.wait()), asyncio.create_task(work)
    ends = {asyncio.create_task(child.ended()): child for child in children}
    tasks = [stopped, working, *ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return False
        for task, child in ends.items():
            if task.done():
                raise UpError(_ended(child, task.result()))
        await working
        return True
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _ended(child: Child, code: int) -> str:
    child.read_log()
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"{child.name} exited unexpectedly {how}{_tail(child)}"


def _tail(child: Child) -> str:
    if not child.last_lines:
        return f"; {child.name} produced no output"
    return "".join([f"; its last lines ({child.name}):", *(f"\n  {line}" for line in child.last_lines)])


def _is_socket(path: Path) -> bool:
    with suppress(OSError):
        return S_ISSOCK(path.stat().st_mode)
    return False


def _is_own(address: Address, session: int) -> bool:
    return bool(address.path) or session_listens(session, address.port)


async def _accepts(address: Address) -> bool:
    try:
        if address.path:
            _, writer = await asyncio.open_unix_connection(address.path)
        else:
            _, writer = await asyncio.open_connection(address.from_here.host, address.port)
    except OSError:
        return False
    writer.close()
    return True

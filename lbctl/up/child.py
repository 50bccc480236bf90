"""A child process of `up`.

This module starts the child, follows its log, and always terminates it together with the child's own child processes.

A child runs in a separate session, so that Ctrl-C in the terminal reaches only `up`, which then terminates its children
in order. On Linux, the system terminates a child whose parent was killed. The output goes to a file, because the nginx
driver reads reload errors from it. The file is truncated when it becomes large.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from lbctl.base.errors import reason_of

_POLL = 0.1
_MAX_LOG_BYTES = 16 << 20
"""Size of the log, in bytes, above which it is truncated."""
_PIECE = 1 << 18
_KEPT_LINES = 8
_ACCESS_LOG = re.compile(r'(?=\{")(?=.*"ts":")(?=.*"request_id":)(?=.*"listener":)')
"""An access log entry in JSON. Envoy sorts the keys."""
_PR_SET_PDEATHSIG = 1


class CannotStartError(Exception):
    """The program could not be started. The message states the reason."""


class CannotShowError(Exception):
    """The program's output can no longer be displayed. The message states the reason."""


class Child:
    """A program whose output is written to `log` and, line by line, to `show`, except for access log entries.

    Access log entries, of which there is one per request, would hide messages such as those about a failed replica.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, show: Callable[[str, str], None]) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._show = show
        self._process: asyncio.subprocess.Process | None = None
        self._log_reader: asyncio.Task[None] | None = None
        self._offset = 0
        self._rest = b""
        self.last_lines: list[str] = []

    async def start(self) -> int:
        """Start the program and return its process ID. Raises CannotStartError."""
        with self._log.open("ab") as out:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    preexec_fn=_ends_with_its_parent(),
                )
            except OSError as error:
                raise CannotStartError(f"{self.name} cannot be started: {reason_of(error)}") from None
        self._log_reader = asyncio.get_running_loop().create_task(self._poll_log())
        return self._process.pid

    async def ended(self) -> int:
        """Wait until the program exits, and return its exit code. Raises CannotShowError."""
        assert self._process is not None
        assert self._log_reader is not None
        end = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({end, self._log_reader}, return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                self._log_reader.result()
            return await end
        except OSError as error:
            raise CannotShowError(f"the output of {self.name} can no longer be shown: {reason_of(error)}") from None
        finally:
            end.cancel()

    async def end(self, patience: float) -> None:
        """Terminate the program and its child processes: SIGTERM, then SIGKILL after `patience` seconds.

        Show the rest of its log.
        """
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._process.wait()
        self.kill()
        await self._process.wait()
        if self._log_reader is not None:
            self._log_reader.cancel()
            await asyncio.gather(self._log_reader, return_exceptions=True)
        with suppress(OSError):  # `ended` has reported it, or only the last lines are missing
            self.read_log()

    def kill(self) -> None:
        """Kill the program and its child processes."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _poll_log(self) -> None:
        while True:
            self.read_log()
            await asyncio.sleep(_POLL)

    def read_log(self) -> None:
        """Show the lines written since the last call."""
        with self._log.open("r+b") as log:
            log.seek(self._offset)
            while piece := log.read(_PIECE):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    self._add(line.decode(errors="replace").rstrip())
            self._offset = log.tell()
            if self._offset > _MAX_LOG_BYTES:
                log.truncate(0)
                self._offset = 0

    def _add(self, line: str) -> None:
        if _ACCESS_LOG.match(line):
            return
        self.last_lines = [*self.last_lines[1 - _KEPT_LINES :], line]
        self._show(self.name, line)


def _ends_with_its_parent() -> Callable[[], None] | None:
    """Return a function that the child calls first, so that Linux sends the child SIGTERM when its parent dies.

    Return None on other systems.
    """
    libc = ctypes.CDLL(None)
    prctl = getattr(libc, "prctl", None)
    return (lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)) if prctl is not None else None

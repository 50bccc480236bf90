"""Runs a program without a shell, with limits on its duration and the size of its output.

Each program runs in its own session. On timeout, the whole process group is killed, because the program may be waiting
for a child process that hangs. `run` does not wait for the output pipe to close, so a daemon that keeps the pipe open
does not cause a delay.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lbctl.base.errors import reason_of

KEPT = 64 * 1024
"""Number of bytes of output to keep from the beginning, and from the end."""
_MAX_SHOWN = 500
"""Maximum number of characters of output in a message."""
_PIECE = 64 * 1024
_PIECES_AFTER_THE_END = 32
"""Maximum number of additional reads after the program has ended. A pipe buffers at most 1 MiB."""
_KILLED = 1.0
"""Seconds to wait for a killed program to exit. Another user's process cannot be killed."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished program."""

    code: int | None
    """Exit code, or None if the program could not be started or did not exit in time."""
    output: str
    """Standard output and standard error or, if `code` is None, the reason."""
    started: bool = True
    """Whether the program could be started."""

    @property
    def message(self) -> str:
        """Return the exit code and the last lines of the output, for a message."""
        lines = " / ".join(self._lines[-3:])[:_MAX_SHOWN] or "no output"
        return self._failure or f"exit code {self.code}: {lines}"

    @property
    def last_line(self) -> str:
        """Return the last non-empty line of the output, or the exit code if the output is empty, for a message."""
        return self._failure or (self._lines[-1][:_MAX_SHOWN] if self._lines else f"exit code {self.code}")

    @property
    def _failure(self) -> str:
        if self.code is not None:
            return ""
        return self.output if self.started else f"the command cannot be started: {self.output}"

    @property
    def _lines(self) -> list[str]:
        return [line.strip() for line in self.output.splitlines() if line.strip()]


async def run(command: Sequence[str], seconds: float, directory: str | None = None) -> Done:
    """Run a program. Kill its process group after `seconds`, or when the caller is cancelled."""
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    output = _Output(reading)
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                cwd=directory,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return Done(None, reason_of(error), started=False)
        finally:
            os.close(writing)
        loop.add_reader(reading, lambda: output.read() or loop.remove_reader(reading))
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            return Done(None, f"it did not end within {seconds:g} s")
        finally:
            loop.remove_reader(reading)
            await _kill(process)
        output.read_rest()
        return Done(process.returncode, output.text())
    finally:
        os.close(reading)


def run_blocking(command: Sequence[str], seconds: float, directory: str | None = None) -> Done:
    """Same as `run`, but for a thread without an event loop."""
    return asyncio.run(run(command, seconds, directory))


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group of a program that is still running."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILLED):
            await process.wait()


class _Output:
    """Reads a pipe without blocking, and keeps the beginning and the end of the output."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._beginning = bytearray()
        self._end = bytearray()
        self._omitted = 0

    def read(self) -> bool:
        """Read a chunk. Return False at the end of the pipe."""
        try:
            piece = os.read(self._pipe, _PIECE)
        except BlockingIOError:
            return True
        room = KEPT - len(self._beginning)
        self._beginning += piece[:room]
        self._end += piece[room:]
        surplus = max(0, len(self._end) - KEPT)
        del self._end[:surplus]
        self._omitted += surplus
        return bool(piece)

    def read_rest(self) -> None:
        """Read the rest of the pipe after the program has exited."""
        for _ in range(_PIECES_AFTER_THE_END):
            if not self.read():
                return

    def text(self) -> str:
        """Return the retained output, with a marker line that replaces the omitted bytes."""
        omitted = f"\n… {self._omitted} bytes …\n".encode() if self._omitted else b""
        return b"".join((self._beginning, omitted, self._end)).decode(errors="replace")

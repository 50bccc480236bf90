"""Runs commands without a shell, and lists the HAProxy processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from lbctl.targets.haproxy import TARGET

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished command. `code` is None if it could not be started or timed out; `output` then says why."""

    code: int | None
    output: str

    @property
    def message(self) -> str:
        """Return the exit code and the last lines of the output, for a message."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        message = " / ".join(lines[-3:])[:500] or "it said nothing"
        return message if self.code is None else f"exit code {self.code}: {message}"


async def run(command: Sequence[str], seconds: float) -> CommandResult:
    """Run a command without a shell, and kill it after `seconds`."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except (OSError, ValueError) as error:
        return CommandResult(None, f"cannot start {command[0]}: {error}")
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return CommandResult(None, f"{command[0]} did not end within {seconds:g} s")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                process.kill()
            await process.wait()
    return CommandResult(process.returncode, output.decode(errors="replace"))


def haproxies(config: str) -> frozenset[int]:
    """Return the ids of the haproxy processes that were started with this file, masters and workers."""
    return frozenset(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and _reads(entry, config))


def _reads(process: Path, config: str) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\x00")
    except OSError:
        return False
    if TARGET.binary not in PurePath(arguments[0]).name:
        return False
    return any(PurePath(argument).name == PurePath(config).name for argument in arguments[1:])

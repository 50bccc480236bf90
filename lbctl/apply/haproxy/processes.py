"""Commands that end by themselves, run without a shell; and which HAProxy processes there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Done:
    """`code` is None where the command could not be started or did not end in time; then `output` says why."""

    code: int | None
    output: str

    @property
    def words(self) -> str:
        """Its last lines, for a message."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        said = " / ".join(lines[-3:])[:500] or "it said nothing"
        return said if self.code is None else f"exit code {self.code}: {said}"


async def run(command: Sequence[str], seconds: float) -> Done:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except (OSError, ValueError) as error:
        return Done(None, f"cannot start {command[0]}: {error}")
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return Done(None, f"{command[0]} did not end within {seconds:g} s")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                process.kill()
            await process.wait()
    return Done(process.returncode, output.decode(errors="replace"))


def haproxies(config: str) -> frozenset[int]:
    """The ids of the processes named haproxy that were started on this file, masters and workers."""
    return frozenset(int(each.name) for each in _PROC.iterdir() if each.name.isdigit() and _reads(each, config))


def _reads(process: Path, config: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\x00")
    except OSError:
        return False
    if "haproxy" not in PurePath(words[0]).name:
        return False
    return any(PurePath(word).name == PurePath(config).name for word in words[1:])

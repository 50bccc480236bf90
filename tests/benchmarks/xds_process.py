"""The measured processes: the servers of `xds_server`, and `lbctl serve` itself."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.memory import resident

_TIMEOUT = 60.0


class Server:
    """A server of `xds_server`. `ask` sends it an order and returns the answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.target = ""

    async def ask(self, **order: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {await self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def server(subject: str, fleet: Path, *more: str) -> AsyncIterator[Server]:
    """Start a server. `more`: further arguments of xds_server."""
    arguments = [sys.executable, "-m", "tests.benchmarks.xds_server", subject, str(fleet), *more]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe)
    try:
        made = Server(process)
        made.target = f"127.0.0.1:{(await made.answer())['port']}"
        yield made
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(_TIMEOUT):
            await process.wait()
    finally:
        await _ended(process)


class Serve:
    """`lbctl serve`, started at `started` (`time.monotonic()`). Its log is in `log`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, started: float) -> None:
        self.process = process
        self.log = log
        self.started = started

    async def listening(self) -> str:
        """Return the address of its xDS port once it listens there."""
        deadline = time.monotonic() + _TIMEOUT
        while self.process.returncode is None and time.monotonic() < deadline:
            port = _port(self.log.read_text())
            if port:
                return f"127.0.0.1:{port}"
            await asyncio.sleep(0.005)
        raise RuntimeError(f"lbctl serve does not listen\n{self.log.read_text()}")

    @property
    def memory(self) -> float:
        """Return its current resident memory in MB."""
        return resident(self.process.pid)


@asynccontextmanager
async def serve(fleet: Path, state: Path) -> AsyncIterator[Serve]:
    """Start the command as users do, on ports that the system assigns."""
    log = state.with_suffix(".log")
    arguments = [sys.executable, "-m", "lbctl", "serve", str(fleet), "--state", str(state)]
    binds = ["--xds-bind", "127.0.0.1:0", "--api-bind", "127.0.0.1:0"]
    with log.open("wb") as errors:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(*arguments, *binds, stderr=errors)
    try:
        yield Serve(process, log, started)
        process.terminate()
        async with asyncio.timeout(_TIMEOUT):
            await process.wait()
    finally:
        await _ended(process)


def _port(log: str) -> str | None:
    found = re.search(r"xds\S*=127\.0\.0\.1:(\d+)", log, re.IGNORECASE)
    return found[1] if found else None


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()

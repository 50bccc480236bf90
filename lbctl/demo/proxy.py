"""A real Envoy as a process of the demo: started, awaited, and ended whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from lbctl.demo.fleet import HOST

_PATIENCE = 15.0
"""Seconds that Envoy may take to listen, and then to end."""


class ProxyError(Exception):
    """Envoy did not come up; the message holds its last words."""


@contextlib.asynccontextmanager
async def envoy(binary: str, config: Path, port: int, log: Path) -> AsyncIterator[None]:
    """Envoy on `config`, listening on `port`. ProxyError where it does not come up."""
    command = [binary, "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        await _listening(process, port, log)
        yield
    finally:
        _end(process)


async def _listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    words = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
    raise ProxyError(f"Envoy does not listen on port {port}:\n{words}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

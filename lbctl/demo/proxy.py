"""A real Envoy as a child process of the demo: started, awaited, and always stopped."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from lbctl.demo.fleet import HOST

_PATIENCE = 15.0
"""Seconds that Envoy may take to listen, and then to stop."""


class ProxyError(Exception):
    """Envoy did not start; the message holds the end of its log."""


@contextlib.asynccontextmanager
async def envoy(binary: str, config: Path, port: int, log: Path) -> AsyncIterator[None]:
    """Run Envoy with `config`, listening on `port`. Raises ProxyError if it does not start."""
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
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
    raise ProxyError(f"Envoy does not listen on port {port}:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""Runs a proxy on a configuration for loopback, until the comparison ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lbctl.apply.reserved_ports import LOOPBACK

_PATIENCE = 20.0
"""Seconds until a proxy listens."""
_MAX_MESSAGE = 600


class NotStartedError(Exception):
    """A proxy that did not start, with its own words."""


def command(kind: str, binary: str, directory: Path, config: str) -> list[str]:
    """Return the command that runs the proxy in the foreground."""
    if kind == "nginx":
        globals_ = f"daemon off; pid {directory / 'nginx.pid'}; worker_processes 1;"
        if "worker_processes" in Path(config).read_text():
            globals_ = f"daemon off; pid {directory / 'nginx.pid'};"
        return [binary, "-p", f"{directory}/", "-c", config, "-e", "stderr", "-g", globals_]
    if kind == "haproxy":
        return [binary, "-db", "-f", config]
    return [binary, "-c", config, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]


@contextmanager
def running(kind: str, binary: str, directory: Path, config: str, ports: Iterable[int]) -> Iterator[None]:
    """Run the proxy until the block ends. Raises NotStartedError if it does not listen in time."""
    log = directory / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(kind, binary, directory, config), cwd=directory, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        _await(process, log, list(ports))
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(process: subprocess.Popen[bytes], log: Path, ports: list[int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not all(map(_listens, ports)):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise NotStartedError(" / ".join(lines[-3:])[:_MAX_MESSAGE] or "it said nothing")
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0

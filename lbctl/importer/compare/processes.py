"""Runs a proxy in a sandbox with a loopback configuration until the comparison ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.sandbox.confined import Sandbox
from lbctl.importer.compare.sandbox.programs import NotAProgramError

_START_TIMEOUT = 20.0
"""Seconds within which a proxy must start listening."""
_MAX_MESSAGE = 600
_HEAD = re.compile(
    r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w+\] \d+#\d+: |\[\w+\] +\(\d+\) : (?:config : )?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\]\[\d+\]\[\w+\]\[\w+\] (?:\[[^\]]*\] )?"
)
"""Prefixes of the log lines written by nginx, HAProxy and Envoy."""
_MAX_READ_BYTES = 1 << 16


class NotStartedError(Exception):
    """A proxy did not start. The message contains the proxy's output."""


def command(kind: str, binary: str, directory: Path, config: str) -> list[str]:
    """Return the command that runs the proxy in the foreground, as a single process."""
    if kind == "nginx":
        globals_ = f"daemon off; master_process off; pid {directory / 'nginx.pid'};"
        return [binary, "-p", f"{directory}/", "-c", config, "-e", "stderr", "-g", globals_]
    if kind == "haproxy":
        return [binary, "-db", "-f", config]
    return [binary, "-c", config, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]


@contextmanager
def running(
    kind: str, binary: str, directory: Path, config: str, ports: Iterable[int], sandbox: Sandbox
) -> Iterator[None]:
    """Run the proxy until the block ends. Raises NotStartedError if it does not listen in time."""
    listen = list(ports)
    try:
        confined = sandbox.command(command(kind, binary, directory, config), directory, listen)
    except NotAProgramError as error:
        raise NotStartedError(f"{error}; set LBCTL_{kind.upper()} to the path of the program") from None
    with (directory / "output.log").open("w+b") as output:
        process = subprocess.Popen(
            confined, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env=sandbox.environment,
        )  # fmt: skip
        try:
            _await(process, output, listen, directory)
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(process: subprocess.Popen[bytes], output: BinaryIO, ports: list[int], directory: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not all(map(_listens, ports)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotStartedError(_last_lines(output, directory) or "it wrote nothing")
        time.sleep(0.05)


def _last_lines(output: BinaryIO, directory: Path) -> str:
    """Return the end of a proxy's output. The file is not reopened, because the proxy may have replaced it."""
    start = max(0, os.fstat(output.fileno()).st_size - _MAX_READ_BYTES)
    written = os.pread(output.fileno(), _MAX_READ_BYTES, start).decode(errors="replace")
    lines = [without_places(line, directory) for line in written.splitlines()]
    return " / ".join([line for line in lines if line][-3:])[:_MAX_MESSAGE]


def without_places(line: str, directory: Path) -> str:
    """Strip the time, process and positions in temporary files from a line of a proxy's output."""
    place = rf"{re.escape(str(directory))}[^\s:'\"\])]*(?::\d+)*"
    line = re.sub(rf" in {place}|(?:parsing |file )?\[{place}\] ?:? ?|{place}(?:: ?)?", "", _HEAD.sub("", line.strip()))
    return line.strip()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0

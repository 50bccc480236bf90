"""Runs a comparison in a separate process, with a loopback-only network and a time limit."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import lbctl
from lbctl.base.errors import reason_of
from lbctl.importer.compare.sandbox import kernel, launch, programs

MAX_SECONDS = 60.0
"""Time limit for a complete comparison, in seconds."""
Method = Literal["namespaces", "landlock", "none"]
METHODS: tuple[Method, ...] = ("namespaces", "landlock")
"""Ways to sandbox proxies, with the strongest first."""
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_MAX_REASON = 300
_CHUNK = 1 << 16


class SandboxUnavailableError(Exception):
    """The system does not support any sandbox for a proxy."""


class TooSlowError(Exception):
    """The comparison exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox for a comparison's proxies."""

    method: Method
    """Sandboxing method."""
    base: Path
    """The comparison's directory."""
    connect: tuple[int, ...] = ()
    """Loopback ports to which proxies may connect. In a separate network namespace, no other process is listening."""

    def command(self, command: Sequence[str], directory: Path, listen: Sequence[int]) -> list[str]:
        """Return a command that runs a proxy's command, restricted to a directory and these ports.

        Raises NotAProgramError if the command's file is a script.
        """
        specification = {
            "method": self.method,
            "place": str(self.base / "root"),
            "directory": str(directory),
            "programs": programs.files_of(command[0]) if command and self.method != "none" else [],
            "command": list(command),
            "listen": list(listen),
            "connect": [*self.connect, *listen],
            "filtered": self.method != "none",
        }
        return [sys.executable, "-P", "-m", launch.__name__, json.dumps(specification)]

    @property
    def environment(self) -> dict[str, str]:
        """Return the command's environment. The proxy itself receives no environment variables."""
        return {"PYTHONPATH": str(Path(lbctl.__file__).parents[1])}

    def problem(self) -> str:
        """Return the reason why a proxy cannot be sandboxed in this way on this system, or "" if it can."""
        own = self.base / "trial"
        own.mkdir()
        tried = subprocess.run(
            self.command([], own, ()), env=self.environment, cwd=own, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", check=False,
        )  # fmt: skip
        own.rmdir()
        return tried.stderr.strip()[-_MAX_REASON:] if tried.returncode else ""


def confined(
    work: Callable[[Sandbox], Any],
    base: Path,
    *,
    allow_unsandboxed: bool = False,
    seconds: float = MAX_SECONDS,
) -> Any:
    """Run `work` in a separate process, and return its result, which is transferred as JSON.

    Raises SandboxUnavailableError, TooSlowError, and RuntimeError with the traceback of an exception in `work`.
    """
    deadline = time.monotonic() + seconds
    reasons = [] if sys.platform == "linux" else [f"{sys.platform} supports neither namespaces nor Landlock"]
    methods = () if reasons else METHODS
    for method in (*methods, "none") if allow_unsandboxed else methods:
        answer = _in_child(method, work, base, deadline)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        if "unavailable" not in answer:
            return answer["result"]
        reasons.append(f"{method}: {answer['unavailable']}")
    raise SandboxUnavailableError("; ".join(reasons))


def _in_child(method: Method, work: Callable[[Sandbox], Any], base: Path, deadline: float) -> dict[str, Any]:
    reader, writer = os.pipe()
    parent = os.getpid()
    child = _fork()
    if child == 0:
        _become_child(method, work, base, parent, writer)
    os.close(writer)
    try:
        received: dict[str, Any] = json.loads(_received(reader, deadline))
        return received
    except ValueError:
        return {"failed": "the comparison process ended without producing a result"}
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _received(reader: int, deadline: float) -> bytes:
    """Read a line. A process that was forked in the meantime may keep the pipe open."""
    received = b""
    while not received.endswith(b"\n"):
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TooSlowError
        chunk = os.read(reader, _CHUNK)
        if not chunk:
            break
        received += chunk
    return received


def _fork() -> int:
    """Fork this process.

    Python would log a warning about other threads. The command has none, but tests do.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# ── In the child ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _become_child(method: Method, work: Callable[[Sandbox], Any], base: Path, parent: int, writer: int) -> NoReturn:
    line = ""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent also gets the signal, and decides how to handle it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        kernel.end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        line = json.dumps(_answer(method, work, base, writer))
    except Exception:  # noqa: BLE001 -- the parent raises it
        line = json.dumps({"failed": traceback.format_exc()})
    finally:
        with suppress(OSError), os.fdopen(writer, "wb") as file:
            file.write(line.encode() + b"\n")
        os._exit(0)


def _answer(method: Method, work: Callable[[Sandbox], Any], base: Path, writer: int) -> dict[str, Any]:
    sandbox = Sandbox(method, base)
    try:
        if method == "namespaces":
            _enter_namespaces(writer)
            (base / "root").mkdir(exist_ok=True)
    except OSError as error:
        return {"unavailable": reason_of(error)}
    if method != "none" and (problem := sandbox.problem()):
        return {"unavailable": problem}
    return {"result": work(sandbox)}


def _enter_namespaces(writer: int) -> None:
    """Continue as the first process in new namespaces.

    When it exits, all their processes are killed. Raises OSError.
    """
    kernel.unshare(kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_PROCESSES)
    alive, held = os.pipe()
    child = _fork()
    if child != 0:
        os.close(writer)
        os.close(alive)
        os.waitpid(child, 0)
        os._exit(0)
    os.close(held)
    kernel.end_with_parent()
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)  # The parent exited before this process could detect it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))

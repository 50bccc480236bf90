"""The command `lbctl` as a process, without importing all of lbctl again for each.

A test session starts hundreds of control planes, and each would spend half a second of processor time on imports. The
standard library's fork server imports lbctl once; each process is a fork of it with its own arguments, directory,
environment and files, and the command line of a `python -m lbctl`. Forks of one server have the same hash seed: tests
that depend on the order of sets start a new interpreter with `executed`.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

import lbctl

_LEFT_OUT = ("lbctl.__main__", "lbctl.demo", "lbctl.importer", "lbctl.simulate", "lbctl.picker.__main__")
"""Modules that run code when they are imported, or that `lbctl serve` does not use."""

HAPROXY_RELOADS: Mapping[str, float] = {"lbctl.apply.haproxy.reload.MIN_INTERVAL": 0.5}
"""HAProxy is reloaded at most twice per second, instead of every five seconds."""
PICKER_ADDRESS: Mapping[str, float] = {"lbctl.serve.picker.manager._RETURN": 3.0}
"""The address of an ended picker is reserved for its own control plane for 3 s, instead of 20 s."""
PICKER_MAY_HANG: Mapping[str, float] = {"lbctl.serve.picker.child._SILENT": 600.0}
"""A hanging picker is not restarted after ten seconds, so that a test has time to examine it."""
_constants: dict[str, float] = {}


class Process(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def executed(arguments: Sequence[str], log: Path, *, module: str = "lbctl") -> Process:
    """Start `python -m lbctl ARGUMENTS` in a new interpreter; both its outputs are appended to `log`."""
    with log.open("ab") as out:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def forked(arguments: Sequence[str], log: Path) -> Process:
    """Start `lbctl ARGUMENTS` in a fork of a process that has imported lbctl; both its outputs are appended to
    `log`."""
    log.touch()
    inherited = (Path.cwd(), dict(os.environ), dict(_constants))
    process = _CONTEXT.Process(target=_main, args=(tuple(arguments), log, *inherited), daemon=True)
    process.start()
    return _Forked(process)


@contextmanager
def short_pauses(constants: Mapping[str, float]) -> Iterator[None]:
    """Set constants of lbctl, MODULE.NAME → seconds, to other values in the processes that `forked` starts in the
    block.

    It is for pauses that no setting of a fleet changes, and works for constants that are read in their module when they
    are used. Fails if lbctl has no constant of this name.
    """
    for path in constants:
        module, _, name = path.rpartition(".")
        getattr(importlib.import_module(module), name)
    before = dict(_constants)
    _constants.update(constants)
    try:
        yield
    finally:
        _constants.clear()
        _constants.update(before)


class _Forked:
    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("lbctl", timeout or 0)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(
    arguments: Sequence[str],
    log: Path,
    directory: Path,
    environment: Mapping[str, str],
    constants: Mapping[str, float],
) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    os.close(out)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for path, seconds in constants.items():
        module, _, name = path.rpartition(".")
        setattr(importlib.import_module(module), name, seconds)
    sys.argv = ["lbctl", *arguments]
    _set_command_line([sys.executable, "-m", "lbctl", *arguments])

    from lbctl.cli import main

    main()


def _set_command_line(words: Sequence[str]) -> None:
    """Write the words to the memory that the kernel shows as the command line, by which lbctl finds its processes."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), the 48th and 49th field
    text = "\0".join(words).encode()
    assert len(text) < end - start, "the command line of the fork server is too short"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _modules() -> list[str]:
    names = (item.name for item in pkgutil.walk_packages(lbctl.__path__, "lbctl."))
    return [name for name in names if not name.startswith(_LEFT_OUT)]


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_modules())

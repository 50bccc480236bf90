"""Runs a command on a pseudo-terminal, reads its output, and presses keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_MAIN = """\
import fcntl, importlib, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for module, name, value in CONSTANTS:
    setattr(importlib.import_module(module), name, value)
from lbctl.cli import main
main()
"""
"""Makes it the controlling terminal, so that the command gets Ctrl-C."""
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PseudoTerminal:
    """A running command. `shown` is its output with escape sequences, since the last call of `forget`."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.shown = ""
        self._descriptor = descriptor

    @property
    def text(self) -> str:
        """Return the output without escape sequences."""
        return _SEQUENCE.sub("", self.shown).replace("\r", "")

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def await_text(self, text: str, timeout: float = 60.0) -> None:
        """Wait until the output contains this text."""
        deadline = time.monotonic() + timeout
        while text not in self.text:
            ended = self.process.poll() is not None
            self._read()
            assert not ended or text in self.text, f"it has ended, and {text!r} is not in:\n{self.text[-4000:]}"
            assert time.monotonic() < deadline, f"{text!r} is not in:\n{self.text[-4000:]}"

    def forget(self) -> None:
        self.shown = ""

    def end(self, timeout: float = 60.0) -> int:
        """Wait for the end of the command, and return its exit code."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended:\n{self.text[-4000:]}"
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        readable = select.poll()  # select() refuses a descriptor above 1023
        readable.register(self._descriptor, select.POLLIN)
        if readable.poll(100):
            with suppress(OSError):
                self.shown += os.read(self._descriptor, 1 << 16).decode(errors="replace")


@contextmanager
def on_terminal(
    *arguments: str,
    columns: int = 80,
    lines: int = 24,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    constants: Mapping[str, float] | None = None,
) -> Iterator[PseudoTerminal]:
    """Run `lbctl` with these arguments on a terminal of this size, in `directory`.

    `constants` replaces constants of lbctl, MODULE.NAME → value.
    """
    replaced = [(*path.rsplit(".", 1), value) for path, value in (constants or {}).items()]
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    code = _MAIN.replace("CONSTANTS", repr(replaced))
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=its, stdout=its, stderr=its, start_new_session=True,
        env={**inherited, "TERM": "xterm-256color", **(environment or {})}, cwd=directory,
    )  # fmt: skip
    os.close(its)
    terminal = PseudoTerminal(process, ours)
    try:
        yield terminal
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)
        os.close(ours)

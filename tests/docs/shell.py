"""A shell session: one bash that runs commands one by one and returns the output of each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_LOOP = """\
said=0
while IFS= read -r -u 9 step; do
  (exit $said); source "$step" > "$step.out" 2>&1 9<&-
  said=$?
  echo $said > "$step.tmp"; mv "$step.tmp" "$step.rc"
done
"""
_END = 30.0
"""Seconds within which all processes must end after a signal; `serve` takes at most ten."""


class Shell:
    """A bash process. `steps`: an empty directory for commands and their output; `cwd`: its working directory."""

    def __init__(self, cwd: Path, steps: Path, env: Mapping[str, str]) -> None:
        self._steps, self._count = steps, 0
        reading, self._writing = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "-c", f"exec 9<&{reading}\n{_LOOP}"],
            cwd=cwd, env=env, stdin=subprocess.DEVNULL, pass_fds=[reading], start_new_session=True,
        )  # fmt: skip
        os.close(reading)

    def __enter__(self) -> Self:
        return self

    def run(self, command: str, patience: float) -> tuple[int, str]:
        """Run a command, and return its exit code and its combined output.

        The code is -1 if it has not ended after `patience` seconds.
        """
        self._count += 1
        step = self._steps / str(self._count)
        step.write_text(f"{command}\n", encoding="utf-8")
        os.write(self._writing, f"{step}\n".encode())
        end = time.monotonic() + patience
        done = step.with_suffix(".rc")
        while not done.exists() and self._bash.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        code = int(done.read_text()) if done.exists() else -1
        return code, step.with_suffix(".out").read_text(encoding="utf-8", errors="replace")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the shell and all background processes."""
        os.close(self._writing)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            if self._all_gone():
                return

    def _all_gone(self) -> bool:
        """Return whether all processes of the shell have ended in time."""
        end = time.monotonic() + _END
        while time.monotonic() < end:
            self._bash.poll()
            try:
                os.killpg(self._bash.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.02)
        return False

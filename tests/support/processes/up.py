"""`lbctl up` as a process with its directories below the test's own, and its output."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.diagnosis import diagnosed, tail_of
from tests.support.processes.ports import HOST, free_port

_KEY = re.compile(r"^ +key +(sk-\S+)", re.MULTILINE)
_START_TIMEOUT = 90.0


class Up:
    """One run of the command in `folder`, where the fleet is `fleet.yaml`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api: int | None = free_port()
        self.out, self.err = folder / "up.out", folder / "up.err"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """Return the environment variables of its processes."""
        return os.environ | self.own_env

    @property
    def own_env(self) -> dict[str, str]:
        """It writes only below the folder, and every process of it has the folder in its variables.

        The programs of this environment, including `lbctl`, are found by name.
        """
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        places = {"TMPDIR": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state"), "PATH": path}
        return places | {"LBCTL_SERVE_API_BIND": f"{HOST}:{self.api}" if self.api else ""}

    def start(self, *options: str, script: str = 'exec "$@"') -> None:
        """Start it from a bash script whose arguments are the command."""
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", script, "bash", sys.executable, "-m", "lbctl", "up", *options],
                cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    def await_ready(self) -> str:
        """Wait until it reports that it is ready. Return everything on standard output."""
        deadline = time.monotonic() + _START_TIMEOUT
        while "dashboard" not in (output := self.out.read_text()):
            assert self.running, f"it has ended\n{self.err.read_text()}"
            assert time.monotonic() < deadline, f"it is not ready\n{self.err.read_text()}"
            time.sleep(0.05)
        return output

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def key(self) -> str:
        """Return the key that it has created and shown."""
        (key,) = _KEY.findall(self.out.read_text())
        return str(key)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        assert self.process is not None
        return self.process.wait(_START_TIMEOUT)

    def run(self, *options: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a second command next to it, which ends by itself."""
        return subprocess.run(
            [sys.executable, "-m", "lbctl", "up", *options],
            cwd=self.folder, env=self.env | dict(env or {}), capture_output=True, text=True, timeout=_START_TIMEOUT,
            check=False,
        )  # fmt: skip

    def processes(self) -> dict[int, str]:
        """Return the id and the command line of its process and of every process that it has started."""
        command_lines = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended in the meantime
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if line and str(self.folder).encode() in (entry / "environ").read_bytes() + line.encode():
                    command_lines[int(entry.name)] = line
        return command_lines


@contextmanager
def alone_at_the_first_port() -> Iterator[None]:
    """Prevent other tests from choosing a port like `up --from`, before this test has its port."""
    with (Path(tempfile.gettempdir()) / "lbctl-tests-first-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def up(folder: Path) -> Iterator[Up]:
    """Prepare a run that is not started yet, and end it with the block in any case."""
    folder.chmod(0o755)
    run = Up(folder)
    try:
        with diagnosed(lambda: tail_of(folder / "fleet.yaml", run.out, run.err)):
            yield run
    finally:
        if run.running:
            run.signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                run.wait()
        for pid in run.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

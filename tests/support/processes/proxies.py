"""The real proxies as processes: started with a configuration, reloaded without a gap as operators do, always reaped.

Ready means that the proxy listens on the ports; no probe is sent, so the log contains only requests of the test. A
proxy that ended by itself fails the test, and its logs are in the failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.diagnosis import tail_of
from tests.support.processes.binaries import Binary, Kind
from tests.support.processes.ports import await_listeners, listens

_START_TIMEOUT = 60.0
"""Seconds. A machine that runs several tests at the same time may take many times the usual duration."""


class Proxy:
    """A proxy that runs `config` with `directory` as its own; `ports` are those on which it must listen.

    `directory` must be accessible to other users (0755): as root, nginx serves as another user.
    """

    def __init__(self, binary: Path, directory: Path, config: Path, ports: Sequence[int]) -> None:
        self.binary = binary
        self.directory = directory
        self.config = config
        self.ports = list(ports)
        self.stdout = directory / "stdout.log"
        self.stderr = directory / "stderr.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the process that currently serves."""
        return self._processes[-1]

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._spawn(self._command())
        self._await_ports()

    def reload(self) -> None:
        """Make it serve the current `config`. Returns when the old processes no longer accept connections."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all its processes, including old generations: SIGTERM, then SIGKILL.

        The newest is first: an Envoy waits up to ten seconds for an older generation that ends at the same time.
        """
        for process in reversed(self._processes):
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the whole group is killed next
                process.wait(15)
            _signal(process, signal.SIGKILL, whole_group=True)
            process.wait(30)

    def assert_alive(self) -> None:
        """Fail, with the logs, if the proxy ended by itself."""
        code = self.process.poll()
        assert code is None, f"{self.binary.name} ended by itself with {code}\n{self.logs()}"

    def logs(self) -> str:
        """Return the ends of its stderr and stdout."""
        return tail_of(self.stderr, self.stdout)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _spawn(self, command: Sequence[str]) -> None:
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        self._processes.append(process)

    def _await_ports(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while missing := await_listeners(self.ports, 0.1):
            self.assert_alive()
            assert time.monotonic() < deadline, f"{self.binary.name} does not listen on {missing}\n{self.logs()}"
        self.assert_alive()

    def _await_handover(self, old: Sequence[int]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._handed_over(old):
            self.assert_alive()
            assert time.monotonic() < deadline, f"{self.binary.name} did not take the new configuration\n{self.logs()}"
            time.sleep(0.02)

    def _handed_over(self, old: Sequence[int]) -> bool:
        raise NotImplementedError

    def _listens(self, pids: Sequence[int]) -> bool:
        return any(listens(pid, port) for pid in pids for port in self.ports)


class Nginx(Proxy):
    """`nginx -p directory`, in the foreground; reloaded by SIGHUP to the master."""

    def _command(self) -> list[str]:
        where = ["-p", f"{self.directory}/", "-c", str(self.config), "-e", "stderr"]
        return [str(self.binary), *where, "-g", "daemon off; pid nginx.pid;"]

    def _await_ports(self) -> None:
        """Wait for its workers too: without workers, the master may miss a signal."""
        super()._await_ports()
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._workers():
            self.assert_alive()
            assert time.monotonic() < deadline, f"nginx has no workers\n{self.logs()}"
            time.sleep(0.005)

    def reload(self) -> None:
        old = self._workers()
        self.process.send_signal(signal.SIGHUP)
        self._await_handover(old)

    def _handed_over(self, old: Sequence[int]) -> bool:
        fresh = [pid for pid in self._workers() if pid not in old]
        return self._listens(fresh) and not self._listens(old)

    def _workers(self) -> list[int]:
        master = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]


class Haproxy(Proxy):
    """`haproxy -db`; reloaded by a second process that makes the first one finish (`-sf`)."""

    def _command(self) -> list[str]:
        return [str(self.binary), "-db", "-f", str(self.config)]

    def _await_ports(self) -> None:
        """Wait for its first check too, which follows its start immediately: a replica that fails its first check is
        down."""
        super()._await_ports()
        deadline, in_a_row = time.monotonic() + _START_TIMEOUT, 0
        while in_a_row < 2:
            self.assert_alive()
            assert time.monotonic() < deadline, f"{self.binary.name} does not come to rest\n{self.logs()}"
            in_a_row = in_a_row + 1 if _sleeps(self.process.pid) else 0
            time.sleep(0.005)

    def reload(self) -> None:
        old = self.process.pid
        self._spawn([*self._command(), "-sf", str(old)])
        self._await_handover([old])

    def _handed_over(self, old: Sequence[int]) -> bool:
        return self._listens([self.process.pid]) and not self._listens(old)


class Envoy(Proxy):
    """`envoy -c`; reloaded by hot restart: the second process takes the listening sockets over, the first drains."""

    def stop(self) -> None:
        super().stop()
        if self._base.exists():  # files shared by the generations remain, named by ten times the id
            Path(f"/dev/shm/envoy_shared_memory_{int(self._base.read_text()) * 10}").unlink(missing_ok=True)

    @property
    def _base(self) -> Path:
        return self.directory / "base-id"

    def _command(self) -> list[str]:
        return [*self._common(), "--use-dynamic-base-id", "--base-id-path", str(self._base)]

    def _common(self) -> list[str]:
        return [
            *(str(self.binary), "-c", str(self.config), "--concurrency", "1", "--log-level", "warning"),
            *("--file-flush-interval-msec", "50", "--drain-time-s", "60", "--parent-shutdown-time-s", "90"),
            *("--drain-strategy", "immediate"),
        ]

    def reload(self) -> None:
        old = self.process.pid
        generation = ["--base-id", self._base.read_text().strip(), "--restart-epoch", str(len(self._processes))]
        self._spawn([*self._common(), *generation])
        self._await_handover([old])

    def _handed_over(self, old: Sequence[int]) -> bool:
        return self._listens([self.process.pid]) and not self._listens(old)


_CLASSES: dict[Binary, type[Proxy]] = {"nginx": Nginx, "haproxy": Haproxy, "haproxy-2.8": Haproxy, "envoy": Envoy}
_CONFIG: dict[Kind, str] = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "envoy": "envoy.yaml"}


def kind_of(name: Binary) -> Kind:
    """Return the kind of a binary: "haproxy" for "haproxy-2.8"."""
    return "haproxy" if name == "haproxy-2.8" else name


def main_file(name: Binary) -> str:
    """Return the name of the proxy's main file."""
    return _CONFIG[kind_of(name)]


def proxy_of(name: Binary, binary: Path, directory: Path, config: Path, ports: Sequence[int]) -> Proxy:
    """Return the proxy, which is not started yet."""
    return _CLASSES[name](binary, directory, config, ports)


def _sleeps(pid: int) -> bool:
    """Return whether all threads of a process and of its children are waiting."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = " ".join((thread / "children").read_text() for thread in threads).split()
        states = {(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads}
    except OSError:  # one has ended
        return False
    return states == {"S"} and all(_sleeps(int(child)) for child in children)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals, *, whole_group: bool = False) -> None:
    try:
        if whole_group:
            os.killpg(process.pid, number)
        elif process.poll() is None:
            process.send_signal(number)
    except ProcessLookupError:
        return

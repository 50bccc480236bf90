"""Observes a running nginx from outside: its master process, its workers, and its log during a reload.

The exit code of a reload does not prove success, because a master that cannot load the configuration continues with the
old one and logs the reason. Therefore, this module observes the workers. nginx tries to bind a port five times, at
intervals of half a second, before it fails. It reads /proc, so it works only on Linux.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.command import run_blocking

_MASTER = "nginx: master process "
_WORKER = "nginx: worker process"
_FINISHING = "nginx: worker process is shutting down"
_BUILT_IN = re.compile(r"--(prefix|conf-path)=(\S+)")
_EMERG = re.compile(r"\[emerg\](?: \d+#\d+:)? (?P<message>.*)")
_RETRIED = "bind() to "
START_TIMEOUT = 10.0
"""Seconds to wait for a new worker before a reload counts as failed. If a port is in use, nginx retries for 2.5 s."""
_VERSION_SECONDS = 10.0
_MAX_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 4096
"""Maximum number of bytes to keep from a log line. nginx writes at most 2,048."""
_MAX_EMERGENCIES = 100
_HANDOVER_TIMEOUT = 5.0
"""Seconds to wait for old workers to start shutting down. After that, new workers alone are sufficient."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Process IDs of workers. The `finishing` workers belong to earlier generations and still have requests."""

    active: frozenset[int] = frozenset()
    """Workers of the current generation."""
    finishing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a reload. `reason` states why it failed."""

    succeeded: bool
    reason: str = ""


def judge(before: Workers, now: Workers, log: str, waited: float) -> Verdict | None:
    """Judge a reload by its workers and new log lines after `waited` seconds.

    Return None while the result is unknown.
    """
    errors = [match["message"] for match in map(_EMERG.search, log.splitlines()) if match]
    final_errors = [reason for reason in errors if not reason.startswith(_RETRIED)]
    if final_errors:
        return Verdict(succeeded=False, reason=(errors[0] if errors[0] != final_errors[0] else final_errors[0]).strip())
    new_workers = now.active - before.active
    if new_workers and (not now.active & before.active or waited > _HANDOVER_TIMEOUT):
        return Verdict(succeeded=True)
    if waited > START_TIMEOUT:
        return Verdict(
            succeeded=False, reason=f"no new worker process within {START_TIMEOUT:g} s; see nginx's error log"
        )
    return None


class Master:
    """An nginx master process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def workers(self) -> Workers:
        """Return the current workers. The result is empty once the master has exited."""
        children: list[str] = []
        with suppress(OSError):
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        titles = {int(pid): _title(int(pid)) for pid in children}
        finishing = frozenset(pid for pid, title in titles.items() if title == _FINISHING)
        return Workers(frozenset(pid for pid, title in titles.items() if title == _WORKER), finishing)

    def log(self) -> Log:
        """Return a reader that starts at the current end of the error log."""
        return Log(Path(f"/proc/{self.pid}/fd/2"))


class Log:
    """Reads `emerg` lines from the master's standard error, which is also its error log if it is a file."""

    def __init__(self, stream: Path) -> None:
        self._stream = stream
        self._offset = 0
        self._rest = b""
        self._emergencies: list[str] = []
        with suppress(OSError):
            self._offset = stream.stat().st_size if stream.is_file() else 0

    def read(self) -> str:
        """Return up to a hundred of the `emerg` lines logged since the reader was created.

        Each call reads at most 1 MiB, because requests may write to the same log.
        """
        with suppress(OSError):
            if self._stream.is_file():
                with self._stream.open("rb") as file:
                    file.seek(self._offset)
                    self._add(file.read(_MAX_READ_BYTES))
        return "\n".join(self._emergencies)

    def _add(self, data: bytes) -> None:
        self._offset += len(data)
        *lines, self._rest = (self._rest[-_MAX_LINE_BYTES:] + data).split(b"\n")
        texts = [line[:_MAX_LINE_BYTES].decode(errors="replace") for line in lines if b"[emerg]" in line]
        self._emergencies += texts[: _MAX_EMERGENCIES - len(self._emergencies)]


def find(config: Path, binary: str) -> Master | None:
    """Return the master process that uses `config`, or None.

    A process directly on this machine takes precedence over one in a container.

    If the master was started without paths on its command line, `binary` provides its built-in paths.
    """
    built_in: dict[str, str] = {}
    pids = []
    for pid, title in _masters():
        if not built_in and not re.search(r"\s-c\s*\S", title):
            built_in = _paths_of(binary)
        path = _config_of(title, built_in)
        if path is not None and _resolved(path) == _resolved(str(config)):
            pids.append(pid)
    return Master(min(pids, key=lambda pid: (not _shares_root(pid), pid))) if pids else None


def _masters() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            title = _title(int(entry.name))
            if title.startswith(_MASTER):
                yield int(entry.name), title


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0 ")
    return ""


def _config_of(title: str, built_in: dict[str, str]) -> str | None:
    """Return the configuration path from the master's command line."""
    prefix, config = _flag("p", title) or built_in.get("prefix", ""), _flag("c", title)
    if config is None:
        config = built_in.get("conf-path")
    return None if config is None else os.path.join(prefix, config)  # noqa: PTH118 -- the second may be absolute


def _flag(letter: str, title: str) -> str | None:
    match = re.search(rf"\s-{letter}\s*(\S+)", title)
    return match[1] if match else None


def _paths_of(binary: str) -> dict[str, str]:
    done = run_blocking([binary, "-V"], _VERSION_SECONDS)
    return dict(_BUILT_IN.findall(done.output)) if done.code is not None else {}


def _resolved(path: str) -> str:
    """Resolve links in the directory but not in the file name, because the file is one of lbctl's links."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- no link of the file is followed
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


def _shares_root(pid: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(Path(f"/proc/{pid}/root").stat(), Path("/").stat())
    return False

"""A running nginx, seen from outside: which process is its master, which workers serve, what it says of a reload.

Exit codes say nothing of a reload: the master goes on with what it had, and tells its log. So the workers are watched.
A port that is taken is tried five times, half a second apart; only then has it failed. Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MASTER = "nginx: master process "
_WORKER = "nginx: worker process"
_FINISHING = "nginx: worker process is shutting down"
_BUILT_IN = re.compile(r"--(prefix|conf-path)=(\S+)")
_EMERG = re.compile(r"\[emerg\](?: \d+#\d+:)? (?P<words>.*)")
_TRIES_AGAIN = "bind() to "
PATIENCE = 10.0
"""Seconds without a new worker after which a reload has failed; a port that is taken takes 2.5."""
_HANDOVER = 5.0
"""Seconds that old workers may take to stop; after that, new ones that serve are enough."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Process ids. `finishing`: of generations before, with requests that they still have."""

    active: frozenset[int] = frozenset()
    finishing: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a reload succeeded; `words` where it failed."""

    taken: bool
    words: str = ""


def judge(before: Workers, now: Workers, log: str, waited: float) -> Verdict | None:
    """After `waited` seconds, with what the log says since the reload; None: it is not decided yet."""
    said = [found["words"] for found in map(_EMERG.search, log.splitlines()) if found]
    final = [words for words in said if not words.startswith(_TRIES_AGAIN)]
    if final:
        return Verdict(taken=False, words=(said[0] if said[0] != final[0] else final[0]).strip())
    fresh = now.active - before.active
    if fresh and (not now.active & before.active or waited > _HANDOVER):
        return Verdict(taken=True)
    if waited > PATIENCE:
        return Verdict(taken=False, words=f"no new worker process within {PATIENCE:g} s; its error log says why")
    return None


class Master:
    """The master process `pid`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def workers(self) -> Workers:
        """None at all where it has ended."""
        children: list[str] = []
        with suppress(OSError):
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        titles = {int(pid): _title(int(pid)) for pid in children}
        finishing = frozenset(pid for pid, title in titles.items() if title == _FINISHING)
        return Workers(frozenset(pid for pid, title in titles.items() if title == _WORKER), finishing)

    def log(self) -> Log:
        """From here on."""
        return Log(Path(f"/proc/{self.pid}/fd/2"))


class Log:
    """What the master writes to its standard error, which is its error log too; nothing where that is no file."""

    def __init__(self, stream: Path) -> None:
        self._stream = stream
        self._offset = 0
        with suppress(OSError):
            self._offset = stream.stat().st_size if stream.is_file() else 0

    def read(self) -> str:
        """Since the beginning."""
        with suppress(OSError):
            if self._stream.is_file():
                with self._stream.open("rb") as file:
                    file.seek(self._offset)
                    return file.read().decode(errors="replace")
        return ""


def find(config: Path, binary: str) -> Master | None:
    """The master that reads `config`, one of this machine's own before one in a container; None where none is seen.
    `binary`: to ask for the paths that are built into it, where a master was started without any."""
    built_in: dict[str, str] = {}
    found = []
    for pid, title in _masters():
        if not built_in and not re.search(r"\s-c\s*\S", title):
            built_in = _paths_of(binary)
        told = _config_of(title, built_in)
        if told is not None and _place(told) == _place(str(config)):
            found.append(pid)
    return Master(min(found, key=lambda pid: (not _at_home(pid), pid))) if found else None


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
    """As the master's command line says it."""
    prefix, config = _flag("p", title) or built_in.get("prefix", ""), _flag("c", title)
    if config is None:
        config = built_in.get("conf-path")
    return None if config is None else os.path.join(prefix, config)  # noqa: PTH118 -- the second may be absolute


def _flag(letter: str, title: str) -> str | None:
    found = re.search(rf"\s-{letter}\s*(\S+)", title)
    return found[1] if found else None


def _paths_of(binary: str) -> dict[str, str]:
    try:
        done = subprocess.run([binary, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(_BUILT_IN.findall(done.stderr))


def _place(path: str) -> str:
    """The directory without links; the file itself is one of ours."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- no link of the file is followed
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


def _at_home(pid: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(Path(f"/proc/{pid}/root").stat(), Path("/").stat())
    return False

"""Saves a picker's affinity memory in two files, so that a restarted picker recognises sessions and prompts.

Each file contains one generation (`lbctl.pick.affinity`). New entries are appended every `INTERVAL`. When a new
generation begins, it replaces the older file. An incomplete line left by a killed process is ignored. `memory_saver`
performs the writes without delaying picks.

Keys are Python hashes with a secret seed (`lbctl.picker.launch`), so the files do not reveal sessions or prompts. Files
written with a different seed or Python version are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lbctl.base.deadline import within
from lbctl.pick.affinity import TTL, AffinityChanges, AffinityMemory
from lbctl.runtime import log

INTERVAL = 0.1
"""Seconds between writes. If a picker is killed, it loses the entries added since the last write."""
READ_TIMEOUT = 5.0
"""Seconds for which a starting picker waits for the files."""
_FORMAT = 1
_NAMES = ("memory-0.jsonl", "memory-1.jsonl")


class SavedMemory:
    """The files in `directory`, which only this user can access. `write` may block.

    `monotonic` and `wall` are the current time on the memory's clock and the current time in seconds since the epoch.
    """

    def __init__(self, directory: Path, monotonic: float, wall: float) -> None:
        self.directory = directory
        self._offset = wall - monotonic
        """Offset of the wall clock from the memory's clock, in seconds."""
        self._generation = -1
        """Generation in the most recently written file; -1 if there is none."""
        self._may_end_within_line = True
        """Whether the newest file may end with an incomplete line."""

    def restore(self, memory: AffinityMemory, now: float) -> int:
        """Load the saved entries into an empty memory.

        Return the number of entries, which is 0 if the disk does not respond.
        """
        try:
            parts = within(READ_TIMEOUT, self._parts)
        except TimeoutError:
            log.warn("the picker is starting without its memory: the disk is not responding", directory=self.directory)
            return 0
        recent = [part for part in parts if now - TTL <= part.began <= now]
        memory.restore(recent)
        if recent:
            self._generation = recent[-1].generation
        return len(memory)

    def write(self, changes: Sequence[AffinityChanges]) -> None:
        """Append the changes, oldest generation first. Raises OSError; some of the changes may then be missing."""
        try:
            for part in changes:
                self._append(part)
        except OSError:
            self._may_end_within_line = True
            raise

    def _append(self, part: AffinityChanges) -> None:
        is_new = part.generation > self._generation
        if is_new:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._generation < 0:
            self._remove_files()
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if is_new else os.O_APPEND)
        descriptor = os.open(self.directory / _NAMES[part.generation % 2], flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if is_new:
                head = {
                    "format": _FORMAT,
                    "hash": hash_version(),
                    "generation": part.generation,
                    "began": part.began + self._offset,
                }
                file.write(_line(head))
            elif self._may_end_within_line:
                file.write(b"\n")
            file.write(_line({"replicas": part.replicas, "entries": part.entries, "forgotten": part.forgotten}))
        self._generation, self._may_end_within_line = max(part.generation, self._generation), False

    def _remove_files(self) -> None:
        """Remove files that were not restored, because their replica numbers have a different meaning."""
        for name in _NAMES:
            (self.directory / name).unlink(missing_ok=True)

    def _parts(self) -> list[AffinityChanges]:
        """Return the contents of the files, oldest generation first."""
        parts = [part for name in _NAMES if (part := self._read(self.directory / name)) is not None]
        return sorted(parts, key=lambda part: part.generation)

    def _read(self, path: Path) -> AffinityChanges | None:
        try:
            head, *lines = path.read_bytes().split(b"\n")
            values = json.loads(head)
            if (values["format"], values["hash"]) != (_FORMAT, hash_version()):
                return None
            part = AffinityChanges(int(values["generation"]), float(values["began"]) - self._offset)
        except (OSError, ValueError, LookupError, TypeError):
            return None
        for line in lines:
            try:
                values = json.loads(line)
                replicas = {int(number): (str(pool), str(name)) for number, (pool, name) in values["replicas"].items()}
                entries, forgotten = _numbers(values["entries"]), _numbers(values["forgotten"])
            except (ValueError, LookupError, TypeError, AttributeError):
                continue
            if len(entries) % 3 == 0:
                part.replicas.update(replicas)
                part.entries += entries
                part.forgotten += forgotten
        return part


def _numbers(values: list[Any]) -> list[int]:
    """Return the values. Raises ValueError if any of them is not an integer."""
    if not all(type(item) is int for item in values):
        raise ValueError
    return values


def hash_version() -> int:
    """Return a value that changes whenever the seed or the Python version changes the entries' keys."""
    return hash(("lbctl", hash(b"picker")))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"

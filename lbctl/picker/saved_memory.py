"""A picker's affinity memory in two files, so that a restarted picker recognises sessions and prompts.

Each file has one generation (`lbctl.pick.affinity`). New entries are appended every `INTERVAL`, and a new generation
replaces the older file. An incomplete line, written by a process that was killed, is ignored.

Keys are Python hashes with a secret seed (`lbctl.picker.launch`), so the files do not contain sessions or prompts.
Files with another seed or from another version of Python are ignored.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lbctl.base.errors import reason_of
from lbctl.pick.affinity import TTL, AffinityChanges, AffinityMemory
from lbctl.runtime import log

INTERVAL = 0.1
"""Seconds between writes. A picker that is killed loses the entries since the last write."""
_FORMAT = 1
_NAMES = ("memory-0.jsonl", "memory-1.jsonl")


class SavedMemory:
    """The files in `directory`, which only this user can read. Both methods may block.

    `monotonic` and `wall` are the current time on the memory's clock and in seconds since the epoch.
    """

    def __init__(self, directory: Path, monotonic: float, wall: float) -> None:
        self._directory = directory
        self._offset = wall - monotonic
        """The wall clock minus the memory's clock, in seconds."""
        self._generation = -1
        """The generation in the most recently written file; -1: none."""
        self._lock = threading.Lock()
        self.failure = ""
        """Why the last write failed, which is also logged; empty if it succeeded."""

    def restore(self, memory: AffinityMemory, now: float) -> int:
        """Add the saved entries to an empty memory. Return their number."""
        parts = [part for name in _NAMES if (part := self._read(self._directory / name)) is not None]
        parts.sort(key=lambda part: part.generation)
        recent = [part for part in parts if now - TTL <= part.began <= now]
        memory.restore(recent)
        if recent:
            self._generation = recent[-1].generation
        return len(memory)

    def write(self, changes: Sequence[AffinityChanges]) -> None:
        """Append changes, oldest generation first. If that fails, they are lost and the reason is logged."""
        with self._lock:
            try:
                for part in changes:
                    self._append(part)
            except OSError as error:
                if not self.failure:
                    log.warn("the picker cannot save its memory", directory=self._directory, why=reason_of(error))
                self.failure = reason_of(error)
            else:
                self.failure = ""

    def _append(self, part: AffinityChanges) -> None:
        is_new = part.generation != self._generation
        if is_new:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if is_new else os.O_APPEND)
        descriptor = os.open(self._directory / _NAMES[part.generation % 2], flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if is_new:
                head = {
                    "format": _FORMAT,
                    "hash": hash_version(),
                    "generation": part.generation,
                    "began": part.began + self._offset,
                }
                file.write(_line(head))
            file.write(_line({"replicas": part.replicas, "entries": part.entries, "forgotten": part.forgotten}))
        self._generation = part.generation

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
    """Return the values. Raises ValueError if one of them is not an integer."""
    if not all(type(item) is int for item in values):
        raise ValueError
    return values


def hash_version() -> int:
    """Return a value that changes whenever the seed or the Python version changes the keys of entries."""
    return hash(("lbctl", hash(b"picker")))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"

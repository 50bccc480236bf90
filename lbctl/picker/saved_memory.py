"""Saves a picker's affinity memory in two files, so that a restarted picker recognises sessions and prompts.

Each file has one generation (`lbctl.pick.affinity`). New entries are appended every `INTERVAL`, and a new generation
replaces the older file. An incomplete line, written by a process that was killed, is ignored. A deleted file is created
again, without its previous entries. `memory_saver` writes without delaying picks.

Keys are Python hashes with a secret seed (`lbctl.picker.launch`), so the files do not reveal sessions or prompts. Files
written with a different seed or Python version are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
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
        """The wall clock minus the memory's clock, in seconds."""
        self._written: dict[str, AffinityChanges] = {}
        """Maps each restored or written file to its generation, with numbers of replicas and without entries."""
        self._foreign = set(_NAMES)
        """Files that were not restored and not yet removed."""
        self._to_create: set[str] = set()
        """Files in `_written` that may not have a valid first line."""
        self._may_end_within_line = set(_NAMES)
        """Files that may end with an incomplete line."""

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
        for part in recent:
            self._foreign.discard(_name(part.generation))
            self._written[_name(part.generation)] = replace(part, entries=[])
        return len(memory)

    def write(self, changes: Sequence[AffinityChanges]) -> None:
        """Append changes, oldest generation first. Raises OSError; a part of them may then be missing."""
        for part in changes:
            self._append(part)

    def _append(self, part: AffinityChanges) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_foreign_files()
        name, known = _name(part.generation), self._numbers(part)
        try:
            descriptor = self._open(name)
        except FileNotFoundError:  # the file has been deleted
            self._to_create.add(name)
            descriptor = self._open(name)
        with os.fdopen(descriptor, "wb") as file:
            if name in self._to_create:
                began = known.began + self._offset
                head = {"format": _FORMAT, "hash": hash_version(), "generation": known.generation, "began": began}
                file.write(_line(head))
                part = replace(known, entries=part.entries)
            elif name in self._may_end_within_line:
                file.write(b"\n")
            self._may_end_within_line.add(name)
            file.write(_line({"replicas": part.replicas, "entries": part.entries, "forgotten": part.forgotten}))
        self._to_create.discard(name)
        self._may_end_within_line.discard(name)

    def _numbers(self, part: AffinityChanges) -> AffinityChanges:
        """Record the part's numbers of replicas, and return all numbers of its file."""
        name = _name(part.generation)
        known = self._written.get(name)
        if known is None or part.generation > known.generation:
            known = self._written[name] = AffinityChanges(part.generation, part.began)
            self._to_create.add(name)
        known.replicas.update(part.replicas)
        known.forgotten += part.forgotten
        return known

    def _open(self, name: str) -> int:
        """Open a file, and create it only if it is in `_to_create`: appended lines need the lines before them."""
        how = os.O_CREAT | os.O_TRUNC if name in self._to_create else os.O_APPEND
        return os.open(self.directory / name, os.O_WRONLY | os.O_NOFOLLOW | how, 0o600)

    def _remove_foreign_files(self) -> None:
        """Remove files that were not restored, because their numbers of replicas have another meaning."""
        for name in sorted(self._foreign):
            (self.directory / name).unlink(missing_ok=True)
            self._foreign.discard(name)

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
                entries, forgotten = _integers(values["entries"]), _integers(values["forgotten"])
            except (ValueError, LookupError, TypeError, AttributeError):
                continue
            if len(entries) % 3 == 0:
                part.replicas.update(replicas)
                part.entries += entries
                part.forgotten += forgotten
        return part


def _name(generation: int) -> str:
    """Return the name of a generation's file."""
    return _NAMES[generation % len(_NAMES)]


def _integers(values: list[Any]) -> list[int]:
    """Return the values. Raises ValueError if one of them is not an integer."""
    if not all(type(item) is int for item in values):
        raise ValueError
    return values


def hash_version() -> int:
    """Return a value that changes whenever the seed or the Python version changes the entries' keys."""
    return hash(("lbctl", hash(b"picker")))


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"

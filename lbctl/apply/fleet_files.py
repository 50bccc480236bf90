"""Resolves the fleet's relative certificate and key paths for a proxy on this machine.

A path is relative to the YAML file that contains it, and lbctl uses the file at that path. If the file is missing,
lbctl uses the copy next to the proxy's configuration, which `lbctl render` needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from lbctl.base.paths import is_file
from lbctl.ir.file_paths import with_files
from lbctl.ir.snapshot import View

Locate = Callable[[str], Path | None]
"""Maps a path in the fleet to the file on this machine, or to None if the file does not exist."""
_READ_BY_PROXIES = frozenset({"certificate", "key", "ca", "crl"})
"""Kinds of files that the proxy itself reads. The content of other files becomes part of its configuration."""


def with_local_files(view: View, locate: Locate, config: Path) -> tuple[View, dict[str, bytes]]:
    """Return the view with absolute file paths, and the contents of the readable files that the proxy reads.

    `config` is the proxy's configuration file.
    """
    contents: dict[str, bytes] = {}

    def rename(path: str, kind: str) -> str:
        place = (locate(path) or config.parent / path).absolute()
        if kind in _READ_BY_PROXIES:
            with suppress(OSError):
                contents[str(place)] = place.read_bytes()
        return str(place)

    return with_files(view, rename), contents


def absent_files(view: View, files: Mapping[str, Path], directory: str) -> list[str]:
    """Return the sorted paths of the fleet's `files` that the proxy reads but that are missing from `directory`."""
    named: set[str] = set()

    def collect(path: str, kind: str) -> str:
        if kind in _READ_BY_PROXIES:
            named.add(path)
        return path

    with_files(view, collect)
    return sorted(path for path in named & files.keys() if not is_file(Path(directory, path)))


def digest(contents: Mapping[str, bytes]) -> str:
    """Return a digest of the files' paths and contents."""
    stamp = hashlib.sha256()
    for part in (part for path in sorted(contents) for part in (path.encode(), contents[path])):
        stamp.update(len(part).to_bytes(8) + part)
    return stamp.hexdigest()

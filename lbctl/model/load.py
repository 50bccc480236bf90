"""Loads YAML files and directories as one fleet.

A fleet may be split across any number of files. This module finds them, reads each within its limits, and merges their
maps by name. The loader continues after a fault, so that one run reports the faults in every file. It does not descend
into subdirectories, opens only regular files, and does not interpret any key except `version`.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, show
from lbctl.base.errors import reason_of
from lbctl.model.node import Node, Scalar, plain_value, position_of
from lbctl.model.text import MAX_BYTES
from lbctl.model.yaml import read

__all__ = [
    "Node", "Scalar", "SourceText", "is_fleet_file", "load", "merged", "plain_value", "position_of", "texts",
    "yaml_files",
]  # fmt: skip

_MERGED = ("listeners", "routes", "pools", "proxies", "gpus")
_STDIN = "-"
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class _InputFile:
    """One file to read."""

    name: str
    """Name of the file, as shown in positions."""
    path: Path | None
    """None for standard input."""
    root: str
    """The directory that relative paths must not leave."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """The bytes of one of a fleet's files."""

    name: str
    """Name of the file, as shown in positions."""
    data: bytes
    root: str
    """The directory that relative paths must not leave."""


def load(paths: Sequence[str], diagnostics: Diagnostics, stdin: IO[bytes] | None = None) -> Node | None:
    """Load the fleet in `paths` (files, directories, `-`) as one map; None if no file could be read."""
    return merged(texts(paths, diagnostics, stdin), diagnostics)


def texts(paths: Sequence[str], diagnostics: Diagnostics, stdin: IO[bytes] | None = None) -> list[SourceText]:
    """Read the files, sorted by name. Files that cannot be read are reported and omitted."""
    contents = []
    for source in _sources(paths, diagnostics):
        data = _content(source, diagnostics, stdin)
        if data is not None:
            contents.append(SourceText(source.name, data, source.root))
    return contents


def merged(texts: Sequence[SourceText], diagnostics: Diagnostics) -> Node | None:
    """Merge the texts into one map; None if none of them is a map.

    All faults are added to `diagnostics`. A faulty file may be missing from the map or incomplete, so the map must not
    be relied on if `diagnostics.failed` is true.
    """
    fleets = [fleet for text in texts if (fleet := _parsed(text, diagnostics)) is not None]
    return _merged(fleets, diagnostics) if fleets else None


def _parsed(text: SourceText, diagnostics: Diagnostics) -> Node | None:
    fleet = read(text.data, text.name, diagnostics)
    if fleet is not None:
        _check_version(fleet, diagnostics)
    return fleet


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sources(paths: Sequence[str], diagnostics: Diagnostics) -> list[_InputFile]:
    """List each file once, sorted by name, so that the order of the arguments does not matter."""
    files: dict[object, _InputFile] = {}
    for path in paths:
        for source in sorted(_expanded(path, diagnostics), key=_name):
            files.setdefault(_identity(source), source)
    return sorted(files.values(), key=_name)


def _identity(source: _InputFile) -> object:
    """Return a key that is identical for all names of the same file."""
    try:
        status = source.path.stat() if source.path else None
    except OSError:
        return source.name
    return (status.st_dev, status.st_ino) if status else _STDIN


def _expanded(given: str, diagnostics: Diagnostics) -> Iterator[_InputFile]:
    if given == _STDIN:
        yield _InputFile(_STDIN, None, ".")
        return
    path = Path(given)
    try:
        if not given:
            raise FileNotFoundError(errno.ENOENT, "no path")
        directory = stat.S_ISDIR(path.stat().st_mode)
        files = yaml_files(path) if directory else []
    except (OSError, ValueError) as error:
        diagnostics.add(_unreadable(_printable(given), error))
        return
    if not directory:
        yield _InputFile(_printable(given), path, str(path.parent))
    elif not files:
        hint = "lbctl reads *.yaml and *.yml files, but not subdirectories or hidden files"
        diagnostics.add(
            Diagnostic("LB001", "the directory contains no YAML files", Position(_printable(given), 1, 1), hint=hint)
        )
    for file in files:
        yield _InputFile(_printable(str(file)), file, str(path))


def yaml_files(directory: Path) -> list[Path]:
    """List a directory's fleet files in arbitrary order. Raises OSError if the directory cannot be listed."""
    with os.scandir(directory) as entries:
        return [directory / entry.name for entry in entries if is_fleet_file(entry.name) and not _is_directory(entry)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a directory or a link to a directory; False for a broken link."""
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()


def is_fleet_file(name: str) -> bool:
    """Return whether a file with this name is part of the fleet if its directory is given as a path."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")


def _name(source: _InputFile) -> str:
    return source.name


def _content(source: _InputFile, diagnostics: Diagnostics, stdin: IO[bytes] | None) -> bytes | None:
    """Read the file, up to one byte beyond the limit."""
    try:
        if source.path is None:
            return (stdin or sys.stdin.buffer).read(MAX_BYTES + 1)
        if not stat.S_ISREG(source.path.stat().st_mode):
            hint = "lbctl reads only files and directories; `-` means standard input"
            diagnostics.add(Diagnostic("LB002", "this is not a regular file", Position(source.name, 1, 1), hint=hint))
            return None
        with source.path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        diagnostics.add(_unreadable(source.name, error))
        return None


def _unreadable(name: str, error: OSError | ValueError) -> Diagnostic:
    if isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Diagnostic("LB001", "no such file or directory", Position(name, 1, 1))
    return Diagnostic("LB002", f"cannot be read: {reason_of(error).lower()}", Position(name, 1, 1))


def _printable(path: str) -> str:
    """Return the path for use in messages, without characters that a terminal would interpret."""
    return path if path.isprintable() else ascii(path)[1:-1]


# ── One fleet ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_version(fleet: Node, diagnostics: Diagnostics) -> None:
    version = _fields(fleet).get("version")
    if version is None:
        hint = "start each fleet file with `version: 1`"
        diagnostics.add(Diagnostic("LB010", "`version` is missing", Position(fleet.file, 1, 1), hint=hint))
    elif type(version.value) is not int or version.value != 1:
        message = f"{show(plain_value(version))} is not a supported version"
        diagnostics.add(Diagnostic("LB010", message, version.position, ("version",), "write `version: 1`"))


def _merged(fleets: Sequence[Node], diagnostics: Diagnostics) -> Node:
    """Merge the maps of all files.

    Maps of named objects are merged by name. Every other value is taken from the first file that contains it.
    """
    merged: dict[str, Node] = {}
    for fleet in fleets:
        for key, node in _fields(fleet).items():
            if key in _MERGED:
                _merge_section(merged, key, node, diagnostics)
            elif key not in merged:
                merged[key] = node
            elif key != "version":
                _report_twice((key,), merged[key], node, diagnostics)
    return Node(merged, fleets[0].file, 1, 1)


def _merge_section(merged: dict[str, Node], key: str, node: Node, diagnostics: Diagnostics) -> None:
    if node.value is not None and not isinstance(node.value, dict):
        hint = "write `NAME:`, with the object's keys below it"
        diagnostics.add(Diagnostic("LB004", f"`{key}` must be a map of names", node.position, (key,), hint))
        return
    section = merged.setdefault(key, Node({}, node.file, node.line, node.column, node.key_line, node.key_column))
    objects = _fields(section)
    for name, definition in _fields(node).items():
        if name in objects:
            _report_twice((key, name), objects[name], definition, diagnostics)
        else:
            objects[name] = definition


def _report_twice(path: tuple[str, ...], first: Node, second: Node, diagnostics: Diagnostics) -> None:
    message = f"{show(path[-1])} is defined twice in this fleet, first at {first.key_position}"
    diagnostics.add(Diagnostic("LB009", message, second.key_position, path, "keep one of them, or rename one"))


def _fields(node: Node) -> dict[str, Node]:
    """Return a map's entries; none if the key has no value."""
    return node.value if isinstance(node.value, dict) else {}

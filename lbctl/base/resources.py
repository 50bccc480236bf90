"""Where the files lie that are not Python: in an installed wheel inside the package, in a checkout beside it.

Only the places are known here: nothing is read, cached or unpacked, and a wheel that is run from a zip is not
supported.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def templates() -> Path:
    """The directory with one directory of Jinja templates for each target. FileNotFoundError if it is not there."""
    return _directory("templates")


def schemas() -> Path:
    """The directory with the generated JSON Schema. FileNotFoundError if it is not there."""
    return _directory("schemas")


def _directory(name: str) -> Path:
    packaged = _PACKAGE / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    beside = checkout / name
    if (checkout / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    raise FileNotFoundError(f"lbctl's own {name} are missing from {packaged} and from {beside}; install lbctl again")

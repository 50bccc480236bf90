"""Locates the directories of non-Python files, which are inside the package in a wheel and next to it in a checkout.

It does not read, cache or unpack anything, so running a wheel from a zip file is not supported.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def templates() -> Path:
    """Return the directory of Jinja templates, one subdirectory per target. Raises FileNotFoundError."""
    return _directory("templates")


def schemas() -> Path:
    """Return the directory of the generated JSON Schema. Raises FileNotFoundError."""
    return _directory("schemas")


def _directory(name: str) -> Path:
    packaged = _PACKAGE / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    beside = checkout / name
    if (checkout / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    raise FileNotFoundError(f"lbctl's {name} are missing from {packaged} and {beside}; reinstall lbctl")

"""Reads a configuration's files within limits. Files that cannot be read are reported without raising an exception."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.base.errors import reason_of

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a configuration file."""
MAX_FILES = 256
"""Maximum number of files in a configuration, including included ones."""


def read_text(path: Path, name: str, diagnostics: Diagnostics) -> str | None:
    """Return the file's text. If the file cannot be read, report this and return None."""
    at = Position(name, 1, 1)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            diagnostics.add(Diagnostic("LB002", "this is not a regular file", at))
            return None
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        missing = isinstance(error, ValueError) or error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
        message = "no such file or directory" if missing else f"cannot be read: {reason_of(error).lower()}"
        diagnostics.add(Diagnostic("LB001" if missing else "LB002", message, at))
        return None
    return decoded(data, name, diagnostics)


def decoded(data: bytes, name: str, diagnostics: Diagnostics) -> str | None:
    """Return the bytes as text. If the bytes are invalid, report this and return None."""
    if len(data) > MAX_BYTES:
        hint = f"the maximum is {MAX_BYTES >> 20} MiB"
        diagnostics.add(Diagnostic("LB980", "the file is too large to import", Position(name, 1, 1), hint=hint))
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        diagnostics.add(Diagnostic("LB003", "the file is not UTF-8 text", Position(name, line, column)))
        return None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        diagnostics.add(Diagnostic("LB980", "the file contains a NUL byte", Position(name, line, 1)))
        return None
    return text

"""The files that a program needs in order to run: the program itself, its loader and its libraries."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

from lbctl.base.errors import reason_of

_LOADER = 3
"""Type of the program header that contains the loader (PT_INTERP)."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_MAX_LOADER = 4096
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/.+?) \(0x[0-9a-f]+\)$", re.MULTILINE)
_TIMEOUT = 10.0
_LISTS = ("/etc/ld.so.cache", f"/etc/ld-musl-{os.uname().machine}.path")
"""Files in which loaders look up library directories."""

_OF_THREADS = "libgcc_s.so.1"
"""Library that glibc loads when a thread ends, even if the program does not list it."""


class NotAProgramError(Exception):
    """A file that is not a program for this machine, such as a script."""


def files_of(program: str) -> list[str]:
    """Return the paths of a program, its loader and its libraries. Raises NotAProgramError."""
    try:
        loader = _loader(program)
        if loader is None:
            return [program]
        listed = subprocess.run(
            [loader, "--list", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT,
            check=True, env={},
        )  # fmt: skip
    except (OSError, struct.error, subprocess.SubprocessError) as error:
        raise NotAProgramError(f"cannot list the libraries of {program}: {reason_of(error)}") from None
    libraries = _LIBRARY.findall(listed.stdout)
    others = [*_LISTS, *(str(Path(library).with_name(_OF_THREADS)) for library in libraries)]
    return list(dict.fromkeys([program, loader, *libraries, *(file for file in others if Path(file).is_file())]))


def _loader(program: str) -> str | None:
    """Return the path of a program's loader, or None if the program does not need one."""
    with Path(program).open("rb") as file:
        header = file.read(_HEADER.size)
        if header[:6] != b"\x7fELF\x02\x01" or len(header) < _HEADER.size:
            raise NotAProgramError(f"{program} is not a 64-bit program; it is a script or another type of file")
        fields = _HEADER.unpack(header)
        start, size, number = fields[5], fields[9], fields[10]
        for index in range(number):
            file.seek(start + index * size)
            kind, _, offset, _, _, length, *_ = _PROGRAM_HEADER.unpack(file.read(_PROGRAM_HEADER.size))
            if kind == _LOADER:
                file.seek(offset)
                return os.fsdecode(file.read(min(length, _MAX_LOADER)).rstrip(b"\0"))
    return None

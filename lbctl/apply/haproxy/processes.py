"""Lists the HAProxy processes of this machine."""

from __future__ import annotations

from pathlib import Path, PurePath

from lbctl.targets.haproxy import TARGET

_PROC = Path("/proc")


def haproxies(config: str) -> frozenset[int]:
    """Return the ids of the haproxy processes that were started with this file, masters and workers."""
    return frozenset(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and _reads(entry, config))


def _reads(process: Path, config: str) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\x00")
    except OSError:
        return False
    if TARGET.binary not in PurePath(arguments[0]).name:
        return False
    names = {PurePath(config).name, PurePath(config).parent.name}
    return any(PurePath(argument).name in names for argument in arguments[1:])


def files_beside(config: str) -> tuple[str, ...]:
    """Return all that the running HAProxy with this file, or with the file's directory, was given by `-f`."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _reads(entry, config):
            files = _files_of(entry)
            if {config, str(PurePath(config).parent)} & {*files}:
                return files
    return ()


def _files_of(process: Path) -> tuple[str, ...]:
    """Return the arguments of `-f`; each may have several values."""
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\x00")
        directory = (process / "cwd").readlink()
    except OSError:
        return ()
    files, in_files = [], False
    for argument in arguments[1:]:
        if argument.startswith("-") or not argument:
            in_files = argument in ("-f", "--")
        elif in_files:
            files.append(str(directory / argument))
    return tuple(files)

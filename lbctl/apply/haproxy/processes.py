"""Lists the HAProxy processes on this machine."""

from __future__ import annotations

from pathlib import Path, PurePath

from lbctl.targets.haproxy import TARGET

_PROC = Path("/proc")


def haproxies(config: str) -> frozenset[int]:
    """Return the process IDs of all HAProxy masters and workers that were started with this file.

    If paths cannot be compared because a process is in a container or a chroot, or belongs to another user, only file
    names are compared.
    """
    return frozenset(int(process.name) for process in _processes() if _reads(process, Path(config)))


def files_beside(config: str) -> tuple[str, ...]:
    """Return all `-f` arguments of the running HAProxy that was started with this file or its directory."""
    for process in _processes():
        files = [place for argument in _arguments(process) if (place := _place(process, argument)) is not None]
        if any(_is_at(file, Path(config)) for file in files):
            return tuple(map(str, files))
    return ()


def _processes() -> list[Path]:
    return [entry for entry in _PROC.iterdir() if entry.name.isdigit()]


def _reads(process: Path, config: Path) -> bool:
    for argument in _arguments(process):
        place = _place(process, argument) if _sees_our_files(process) else None
        if _is_at(place, config) if place else PurePath(argument).name in (config.name, config.parent.name):
            return True
    return False


def _is_at(file: Path, config: Path) -> bool:
    """Return whether a path is `config`, a file that has replaced it, or the directory that contains it."""
    try:
        replaced = file.name == config.name and file.parent.samefile(config.parent)
        return replaced or file.samefile(config) or file.samefile(config.parent)
    except OSError:
        return False


def _sees_our_files(process: Path) -> bool:
    try:
        return (process / "root").samefile("/")
    except OSError:
        return False


def _place(process: Path, argument: str) -> Path | None:
    """Return the path in an argument, or None if it is relative and the working directory cannot be determined."""
    try:
        return Path(argument) if argument.startswith("/") else (process / "cwd").readlink() / argument
    except OSError:
        return None


def _arguments(process: Path) -> list[str]:
    """Return the values of all `-f` options, each of which may have several. The result is empty for other programs."""
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\x00")
    except OSError:
        return []
    if TARGET.binary not in PurePath(arguments[0]).name:
        return []
    files, in_files = [], False
    for argument in arguments[1:]:
        if argument.startswith("-") or not argument:
            in_files = argument in ("-f", "--")
        elif in_files:
            files.append(argument)
    return files

"""Lists the HAProxy processes of this machine."""

from __future__ import annotations

from pathlib import Path, PurePath

from lbctl.targets.haproxy import TARGET

_PROC = Path("/proc")


def haproxies(config: str) -> frozenset[int]:
    """Return the ids of the haproxy processes that were started with this file, masters and workers.

    A file is the same one by its directory's device and inode, so one in a container counts by what is mounted there.
    Where /proc does not show a process's files (another user's), its name decides.
    """
    return frozenset(int(process.name) for process in _processes() if _reads(process, Path(config)))


def files_beside(config: str) -> tuple[str, ...]:
    """Return all that the running HAProxy with this file, or with the file's directory, was given by `-f`."""
    for process in _processes():
        if _reads(process, Path(config)):
            return tuple(str(PurePath("/") / argument.relative_to(process / "root")) for argument in _files_of(process))
    return ()


def _processes() -> list[Path]:
    return [entry for entry in _PROC.iterdir() if entry.name.isdigit()]


def _reads(process: Path, config: Path) -> bool:
    return any(_is_at(file, config) for file in _files_of(process))


def _is_at(file: Path, config: Path) -> bool:
    """Return whether a process's file is `config`, or the directory that holds it."""
    try:
        if file.name == config.name:
            return file.parent.samefile(config.parent)
        return file.samefile(config.parent)
    except PermissionError:
        return file.name in (config.name, config.parent.name)
    except OSError:
        return False


def _files_of(process: Path) -> list[Path]:
    """Return the arguments of `-f` below /proc/ID/root; each may have several values. Of another program: none."""
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\x00")
        if TARGET.binary not in PurePath(arguments[0]).name:
            return []
        directory = (process / "cwd").readlink()
    except OSError:
        return []
    files, in_files = [], False
    for argument in arguments[1:]:
        if argument.startswith("-") or not argument:
            in_files = argument in ("-f", "--")
        elif in_files:
            files.append(process / "root" / str(directory / argument).lstrip("/"))
    return files

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
    return any(PurePath(argument).name == PurePath(config).name for argument in arguments[1:])

"""The paths at which a fix may have to be applied."""

from __future__ import annotations

from lbctl.base.diagnostics import Path

_DEFAULTS = {"pools": "pool", "routes": "route"}


def candidate_paths(path: Path) -> list[Path]:
    """The path itself, and that in the defaults from which its value may come."""
    kind = _DEFAULTS.get(str(path[0]))
    return [path, ("defaults", kind, *path[2:])] if kind else [path]

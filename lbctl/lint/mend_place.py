"""Where in a file a mend may have to be made."""

from __future__ import annotations

from lbctl.base.diagnostics import Path

_DEFAULTS = {"pools": "pool", "routes": "route"}


def places(path: Path) -> list[Path]:
    """Its own place, and that in the defaults from which its value may come."""
    kind = _DEFAULTS.get(str(path[0]))
    return [path, ("defaults", kind, *path[2:])] if kind else [path]

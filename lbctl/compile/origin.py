"""Where a fact of the fleet was written, or that nobody wrote it: then it is a default.

Facts go by the Topology's words, which are the YAML's but for a few: a capacity is written as weight or GPU, and what
has no order of its own is sorted.
"""

from __future__ import annotations

from lbctl.base.diagnostics import Path, Position
from lbctl.compile.sources import SourceMap
from lbctl.model.node import descend

_SORTED = frozenset({"rate_limit", "certificates"})
_CAPACITY = ("weight", "gpu_count", "gpu")


def origin(sources: SourceMap, path: Path) -> Position | None:
    """The place of the value, of its list where it has no place of its own, or None for a default."""
    for written in _ways(path):
        node = descend(sources.root, sources.written(written))
        if node is not None:
            return node.position
    return None


def _ways(path: Path) -> list[Path]:
    if path[-1] == "capacity":
        return [(*path[:-1], key) for key in _CAPACITY]
    at = next((place for place, step in enumerate(path) if step in _SORTED), None)
    if at is not None and at < len(path) - 1:
        return [path[: at + 1]]
    if path[-2:-1] == ("set",) or path[-3:-1] == ("match", "headers"):
        return [path, path[:-1]]
    return [path]

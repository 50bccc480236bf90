"""Where a setting of the fleet was written; a setting that nobody wrote is a default.

Settings use the Topology's paths, which are the YAML's but for a few: a capacity is written as weight or GPU, and
entries without an order of their own are sorted.
"""

from __future__ import annotations

from lbctl.base.diagnostics import Path, Position
from lbctl.compile.sources import SourceMap
from lbctl.model.node import descend

_SORTED = frozenset({"rate_limit", "certificates"})
_CAPACITY = ("weight", "gpu_count", "gpu")


def origin(sources: SourceMap, path: Path) -> Position | None:
    """Return the position of the value, or of its list if it has none of its own; None for a default."""
    for path_in_file in _written_paths(path):
        node = descend(sources.root, sources.written(path_in_file))
        if node is not None:
            return node.position
    return None


def _written_paths(path: Path) -> list[Path]:
    if path[-1] == "capacity":
        return [(*path[:-1], key) for key in _CAPACITY]
    index = next((number for number, step in enumerate(path) if step in _SORTED), None)
    if index is not None and index < len(path) - 1:
        return [path[: index + 1]]
    if path[-2:-1] == ("set",) or path[-3:-1] == ("match", "headers"):
        return [path, path[:-1]]
    return [path]

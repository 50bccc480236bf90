"""Tracks where the Topology's objects are in the YAML, separately from the Topology.

Targets and the running control plane use the Topology's own paths, which identify a replica by its name
(`pools.llama.replicas.a100-0`), because a list index has no meaning once the replicas have been sorted. Settings use
the same paths. A few paths in the YAML differ, because a capacity is written as a weight or GPU, and entries whose
order has no meaning are sorted. A setting without a position in the YAML has its default value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lbctl.base.diagnostics import Diagnostic, Path, Position
from lbctl.model.node import Node, descend, position_of
from lbctl.model.section import Section
from lbctl.model.section_cache import Place, SectionCache

_Result = TypeVar("_Result")
_SORTED = frozenset({"rate_limit", "certificates"})
_CAPACITY = ("weight", "gpu_count", "gpu")


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Maps the Topology's paths to positions in the YAML."""

    root: Node
    replicas: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Maps each pool and replica name to the replica's index in the list."""
    limits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Maps each route to the list index of each request limit, for lists that also contain prompt-token limits."""

    sections: Mapping[str, Mapping[str, Section]] = field(default_factory=dict)
    """Maps each section and name to the pool or route as it was written."""
    cache: SectionCache = field(default_factory=SectionCache, compare=False)
    """Values derived from the previous fleet's pools and routes."""

    def derived(self, purpose: Hashable, place: Place, derive: Callable[[], _Result]) -> _Result:
        """Return a value that depends only on the YAML of this pool or route, and not on its position."""
        section = self.sections.get(place[0], {}).get(place[1])
        if section is None:
            return derive()
        return self.cache.derived(purpose, place, section, (), lambda: (derive(), True))

    def written(self, path: Path) -> Path:
        """Return the path in the YAML."""
        index = self._index(path) if len(path) > 3 else None
        return path if index is None else (*path[:3], index, *path[4:])

    def _index(self, path: Path) -> int | None:
        """Return a replica's or limit's index in the YAML, or None if it is already in the path or does not exist."""
        item = path[3]
        if (path[0], path[2]) == ("pools", "replicas") and not isinstance(item, int):
            return self.replicas.get(str(path[1]), {}).get(item)
        if (path[0], path[2]) == ("routes", "rate_limit") and isinstance(item, int):
            indexes = self.limits.get(str(path[1]), ())
            return indexes[item] if item < len(indexes) else None
        return None

    def position(self, path: Path, key: bool = False) -> Position:
        """Return the position of the value at `path`, or of its nearest ancestor written by the user."""
        return position_of(self.root, self.written(path), key)

    def with_position(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with a position if it has only a path."""
        if diagnostic.position is not None or not diagnostic.path:
            return diagnostic
        path = self.written(diagnostic.path)
        return replace(diagnostic, position=position_of(self.root, path), path=path)


def origin(sources: SourceMap, path: Path) -> Position | None:
    """Return the position of the value, or of its list if it has no separate position, or None for a default."""
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

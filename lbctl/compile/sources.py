"""The positions of the Topology's objects in the YAML, kept beside the Topology, never in it.

Targets and the running control plane use the Topology's own paths, in which a replica is named by its name
(`pools.llama.replicas.a100-0`): a list index means nothing once the replicas are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lbctl.base.diagnostics import Diagnostic, Path, Position
from lbctl.model.node import Node, position_of


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Maps the Topology's paths to positions in the YAML."""

    root: Node
    """The tree of the YAML."""
    replicas: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Pool → replica's name → its index in the list."""

    def written(self, path: Path) -> Path:
        """Return the path as the YAML has it."""
        if len(path) < 4 or path[0] != "pools" or path[2] != "replicas" or isinstance(path[3], int):
            return path
        index = self.replicas.get(str(path[1]), {}).get(path[3])
        return path[:3] if index is None else (*path[:3], index, *path[4:])

    def position(self, path: Path, key: bool = False) -> Position:
        """Return the position of the value at `path`, or of its nearest ancestor that the user wrote."""
        return position_of(self.root, self.written(path), key)

    def with_position(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with a position, if it has only a path."""
        if diagnostic.position is not None or not diagnostic.path:
            return diagnostic
        path = self.written(diagnostic.path)
        return replace(diagnostic, position=position_of(self.root, path), path=path)

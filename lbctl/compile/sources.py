"""Where each thing of the Topology stands in the YAML. Beside the Topology, never in it.

Targets and the running control plane name things by the Topology's own paths, in which a replica goes by its name
(`pools.llama.replicas.a100-0`): a list position means nothing once the replicas are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lbctl.base.diagnostics import Diagnostic, Path, Position
from lbctl.model.node import Node, find


@dataclass(frozen=True, slots=True)
class SourceMap:
    """`replicas`: pool → replica's name → its place in the list."""

    root: Node
    replicas: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def written(self, path: Path) -> Path:
        """The path as it stands in the YAML."""
        if len(path) < 4 or path[0] != "pools" or path[2] != "replicas" or isinstance(path[3], int):
            return path
        index = self.replicas.get(str(path[1]), {}).get(path[3])
        return path[:3] if index is None else (*path[:3], index, *path[4:])

    def position(self, path: Path, key: bool = False) -> Position:
        """Of the value at `path`, or of the nearest thing around it that was written."""
        return find(self.root, self.written(path), key)

    def placed(self, diagnostic: Diagnostic) -> Diagnostic:
        """The same finding with its position, where it has only a path."""
        if diagnostic.position is not None or not diagnostic.path:
            return diagnostic
        path = self.written(diagnostic.path)
        return replace(diagnostic, position=find(self.root, path), path=path)

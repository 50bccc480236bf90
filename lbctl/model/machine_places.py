"""Sockets and log files that a fleet names outside `proxies` and `control`.

A proxy connects to Unix sockets, listens on them, and writes its access log, with the rights with which it is started.
Where everybody may have written a stored fleet, it may name only those that the member's own files name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, show
from lbctl.model.fleet import FleetSource
from lbctl.model.load import SourceText, merged
from lbctl.model.node import Node

_SOCKET = "unix:"
_LOG = ("access_log", "path")


def own_places(texts: Sequence[SourceText]) -> frozenset[str] | None:
    """Return the sockets and log files that a member's files name; None where these cannot be read."""
    faults = Diagnostics()
    root = merged(texts, faults)
    return None if root is None or faults.failed else frozenset(str(node.value) for _, node in _places(root))


def foreign_places(source: FleetSource, own: frozenset[str]) -> Iterator[Diagnostic]:
    """Yield LB516 for each socket and log file of a stored fleet that the member's files do not name."""
    for path, node in _places(source.root):
        if path[0] not in ("control", "proxies") and node.value not in own:
            message = f"{show(node.value)} is not in the files of this member, and the stored fleet is not signed"
            hint = "give the members a control.store.key_file, or name it in the files of each member"
            yield Diagnostic("LB516", message, node.position, path, hint)


def _places(root: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    if isinstance(root.value, dict):
        for key, node in root.value.items():
            yield from _places(node, (*path, key))
    elif isinstance(root.value, list):
        for index, node in enumerate(root.value):
            yield from _places(node, (*path, index))
    elif isinstance(root.value, str) and (root.value.startswith(_SOCKET) or path[-2:] == _LOG):
        yield path, root

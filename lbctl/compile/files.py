"""The files that a fleet names: whether they are there, and that none lies outside its directory.

A pipeline has neither production's certificates nor its keys, so a missing file is a warning unless the caller asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lbctl.base import diagnostics as d
from lbctl.model.fleet import Source
from lbctl.model.node import Node

_FILE_KEYS = frozenset({"certificate", "key", "client_ca", "ca", "file", "jwks_file", "path", "token_file"})
"""Keys that may hold a path; `_is_file` tells which of them do, where."""
_SECTIONS = frozenset({"listeners", "routes", "pools"})
_HOLDERS = frozenset({"tls", "auth", "discovery"})
"""What of a listener, a route or a pool may hold them."""


def check_files(source: Source, required: bool, diagnostics: d.Diagnostics) -> None:
    """LB110 for a file that is not there (an error if `required`), LB502 for one outside its directory, LB118 for two
    of one name. That a key file is missing is for `secrets` to say."""
    first: dict[str, Path] = {}
    for path, node in named_files(source.root):
        diagnostics.extend(_findings(source, path, node, required))
        written, place = str(node.value), file_of(source, node).resolve()
        if path[-1] != "path" and first.setdefault(written, place) != place:
            message = f"{d.show(written)} is also the name of another file, {d.show(str(first[written]))}"
            hint = "a proxy has one directory for both: give each a name of its own"
            diagnostics.add(d.Diagnostic("LB118", message, node.position, path, hint))


def files_on_disk(source: Source) -> dict[str, Path]:
    """A path as it is written in the fleet → the file on this machine, for all that are there."""
    named = {str(node.value): file_of(source, node) for _, node in named_files(source.root)}
    return {written: place for written, place in named.items() if place.is_file()}


def file_of(source: Source, node: Node) -> Path:
    """Relative to the YAML file that names it: its directory is the PATH directory, which has no others below it."""
    return Path(source.roots[node.file]) / str(node.value)


def _findings(source: Source, path: d.Path, node: Node, required: bool) -> Iterator[d.Diagnostic]:
    place, written = file_of(source, node), str(node.value)
    if not place.is_file():
        if path[0] == "routes":
            return
        severity: d.Severity = "error" if required else "warning"
        yield d.Diagnostic("LB110", f"there is no file {d.show(written)}", node.position, path, "", severity)
        return
    root = Path(source.roots[node.file]).resolve()
    if not written.startswith("/") and not place.resolve().is_relative_to(root):
        hint = "keep the file below the fleet's directory"
        yield d.Diagnostic("LB502", f"{d.show(written)} leads out of its directory", node.position, path, hint)


def named_files(root: Node, path: d.Path = ()) -> Iterator[tuple[d.Path, Node]]:
    """Every path of a file that stands in the fleet, except those of the control plane itself."""
    if isinstance(root.value, dict):
        for key, node in root.value.items():
            here = (*path, key)
            if (not path and key not in _SECTIONS) or (len(path) == 2 and key not in _HOLDERS):
                continue
            if isinstance(node.value, str) and key in _FILE_KEYS and _is_file(here):
                yield here, node
            elif isinstance(node.value, dict | list):
                yield from named_files(node, here)
    elif isinstance(root.value, list):
        for index, node in enumerate(root.value):
            yield from named_files(node, (*path, index))


def _is_file(path: d.Path) -> bool:
    keys = [step for step in path if isinstance(step, str)]
    section, key = keys[0], keys[-1]
    if key == "path":
        return section == "pools" and keys[-2:-1] == ["file"]
    if section == "listeners":
        return "tls" in keys[2:3]
    if section == "pools":
        return keys[2:3] == ["tls"]
    return keys[2:3] == ["auth"] and key in {"file", "jwks_file"}

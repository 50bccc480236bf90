"""Keys that a control plane member takes only from its own files when it serves a fleet from a shared store.

Other parties may have write access to a store. A stored fleet therefore determines what the proxies serve, but never
what runs on a member's machine. Commands, and the paths and addresses that a member or its proxies write to or open,
come from the member's own files.

A proxy connects to Unix sockets, listens on them, and writes its access log with the privileges with which it was
started. If the store is not protected, a stored fleet may name only sockets and log files that the member's own files
also name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from pydantic import ValidationError

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, show
from lbctl.model.control import Control, Proxy
from lbctl.model.control_section import FAULTS_OF_THE_REST, lines_of, only_lines, with_control
from lbctl.model.fleet import FleetSource, parse
from lbctl.model.load import SourceText, merged
from lbctl.model.node import Node, descend, plain_value

_SECTIONS = ("control", "proxies")
_OWN_KEYS = frozenset({
    "config", "reload", "runtime_api", "agent_check", "include", "user", "group", "chroot", "admin", "metrics", "form",
})  # fmt: skip
"""A proxy's keys that determine what runs on its machine, and which files and sockets are opened there."""
_OWNERS = ("listeners", "routes", "pools")
"""Sections whose objects can have their own lines."""
_SOCKET = "unix:"
_LOG = ("access_log", "path")


def own_sections(texts: Sequence[SourceText]) -> FleetSource | None:
    """Return the `control` and `proxies` sections of a member's files, even if other parts are invalid.

    Return None if any part of these sections cannot be read.
    """
    return _readable([part for text in texts if (part := _part(text)) is not None]) or _readable(texts)


def with_own(source: FleetSource, own: FleetSource | None) -> FleetSource:
    """Return a stored fleet with the `control` section and the proxies' own keys from a member's files.

    The member does not manage proxies that are not listed in these files. If `own` is None, the member does not manage
    any proxies.
    """
    if own is None:
        source = _without_control(source)
        named: Mapping[str, Node] = {}
    else:
        source = with_control(source, own)
        named = _proxies(own.root)
    nodes = {name: _merged(node, named.get(name), source) for name, node in _proxies(source.root).items()}
    sections = dict(source.root.value) if isinstance(source.root.value, dict) else {}
    if (written := sections.get("proxies")) is not None:
        sections["proxies"] = Node(dict(nodes), written.file, written.line, written.column)
    root = Node(sections, source.root.file, source.root.line, source.root.column)
    proxies = {name: _validated(node) for name, node in nodes.items() if name in source.fleet.proxies}
    return replace(source, fleet=source.fleet.model_copy(update={"proxies": proxies}), root=root)


def _part(text: SourceText) -> SourceText | None:
    """Return the text reduced to the lines of the two sections; None if it contains neither."""
    lines = text.data.split(b"\n")
    found = [part for name in _SECTIONS if (part := lines_of(lines, name)) is not None]
    return only_lines(text, lines, found) if found else None


def _readable(texts: Sequence[SourceText]) -> FleetSource | None:
    """Parse texts. Return None if they have a fault or contain neither section."""
    faults = Diagnostics()
    source = parse(texts, faults) if texts else None
    is_faulty = any(item.severity == "error" and item.code not in FAULTS_OF_THE_REST for item in faults)
    return source if source is not None and not is_faulty and "control" in source.fleet.model_fields_set else None


def _without_control(source: FleetSource) -> FleetSource:
    sections = dict(source.root.value) if isinstance(source.root.value, dict) else {}
    sections.pop("control", None)
    root = Node(sections, source.root.file, source.root.line, source.root.column)
    return replace(source, fleet=source.fleet.model_copy(update={"control": Control.default()}), root=root)


def _proxies(root: Node) -> Mapping[str, Node]:
    section = descend(root, ("proxies",))
    return section.value if section is not None and isinstance(section.value, dict) else {}


def _merged(stored: Node, own: Node | None, source: FleetSource) -> Node:
    """Return a stored proxy with its own keys taken from the member's entry for the same proxy.

    If the kinds differ, the result does not have any of these keys.
    """
    values = stored.value if isinstance(stored.value, dict) else {}
    own_values = own.value if own is not None and isinstance(own.value, dict) else {}
    if _kind(values) != _kind(own_values):
        own_values = {}
    kept = {key: node for key, node in values.items() if key not in _OWN_KEYS}
    taken = {key: node for key, node in own_values.items() if key in _OWN_KEYS}
    if "include" in taken:
        taken["include"] = _for_objects(taken["include"], frozenset(chain(*map(source.names, _OWNERS))))
    return Node({**kept, **taken}, stored.file, stored.line, stored.column, stored.key_line, stored.key_column)


def _kind(values: Mapping[str, Node]) -> object:
    return values["kind"].value if "kind" in values else None


def _for_objects(include: Node, names: frozenset[str]) -> Node:
    """Return the own lines, except those for objects that are not in the stored fleet."""
    if not isinstance(include.value, dict):
        return include
    places = {}
    for place, node in include.value.items():
        if isinstance(node.value, dict):
            kept = {owner: files for owner, files in node.value.items() if owner in names}
            node = Node(dict(kept), node.file, node.line, node.column, node.key_line, node.key_column)
        places[place] = node
    return Node(dict(places), include.file, include.line, include.column, include.key_line, include.key_column)


def _validated(node: Node) -> Proxy:
    """Return the node's proxy, without its own keys if they are incompatible with the other keys."""
    try:
        return Proxy.model_validate(plain_value(node))
    except ValidationError:
        values = node.value if isinstance(node.value, dict) else {}
        rest = {key: value for key, value in values.items() if key not in _OWN_KEYS}
        return Proxy.model_validate(plain_value(Node(dict(rest), node.file, node.line, node.column)))


def own_places(texts: Sequence[SourceText]) -> frozenset[str] | None:
    """Return the sockets and log files named in a member's files; None if the files cannot be read."""
    faults = Diagnostics()
    root = merged(texts, faults)
    return None if root is None or faults.failed else frozenset(str(node.value) for _, node in _places(root))


def foreign_places(source: FleetSource, own: frozenset[str]) -> Iterator[Diagnostic]:
    """Yield LB516 for each socket and log file that a stored fleet names but the member's files do not."""
    for path, node in _places(source.root):
        if path[0] not in ("control", "proxies") and node.value not in own:
            message = f"{show(node.value)} is not listed in this member's files, and the stored fleet is not signed"
            hint = "set control.store.key_file on all members, or list the path in each member's files"
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

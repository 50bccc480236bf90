"""The whole file: `Fleet`, the `defaults` laid under its objects, and `read`, the way from files to both.

`read` never raises for bad input: what is wrong goes to the diagnostics, all of it, and the result is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from pydantic import Field, ValidationError

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, show
from lbctl.model import values as v
from lbctl.model.control import Control, Proxy
from lbctl.model.errors import diagnostics_of
from lbctl.model.listener import Listener
from lbctl.model.load import Text, merged, texts
from lbctl.model.node import Node, descend, plain
from lbctl.model.pool import Pool
from lbctl.model.prune import without_faults
from lbctl.model.route import Route
from lbctl.model.section import Section
from lbctl.model.shape import section_below


class Defaults(Section):
    """Laid under every pool, and every route. Their values are checked as those of the objects are."""

    pool: dict[str, Any] = Field({}, description="The same keys as a pool has.")
    route: dict[str, Any] = Field({}, description="The same keys as a route has.")


class Fleet(Section):
    version: Literal[1] = Field(description="The version of the format, in every file.")
    defaults: Defaults = Field(
        Defaults(),
        description="Laid under every pool and route: maps deeply, lists as a whole; a choice replaces theirs.",
    )
    gpus: dict[v.Gpu, v.PositiveNumber] = Field(
        {}, description="Throughput of one GPU, where A100-80GB is 5; beside and above the built-in table."
    )
    listeners: dict[v.Name, Listener] = Field({}, description="Where clients come in.")
    routes: dict[v.Name, Route] = Field({}, description="Which request goes to which pool.")
    pools: dict[v.Name, Pool] = Field({}, description="Replicas that serve the same model.")
    proxies: dict[v.Name, Proxy] = Field(
        {}, description="The proxies that run the result. Without them `render -t KIND` takes the oldest version."
    )
    control: Control = Field(Control(), description="The control plane, `lbctl serve`.")


@dataclass(frozen=True, slots=True)
class Source:
    """A fleet as it was written: typed, and as the tree that knows where each value stands, defaults laid under it.

    `roots`: file → the directory below which its relative paths stay. Of a fleet with faults this is what is left of
    it: good for finding more, and for nothing else. `whole` is then the tree as it was written, and `touched` names the
    objects that something is missing from. `stand_ins`: place of a file of targets → what is taken for its content.
    """

    fleet: Fleet
    root: Node
    roots: dict[str, str]
    whole: Node
    touched: frozenset[Path] = frozenset()
    stand_ins: Mapping[str, bytes] = field(default_factory=dict)

    def names(self, section: str) -> list[str]:
        """Every name that was written in a section, of faulty objects too."""
        node = descend(self.whole, (section,))
        return list(node.value) if node is not None and isinstance(node.value, dict) else []


_LEGIBLE = frozenset({"LB008", "LB009", "LB010", "LB012", "LB501"})
"""Faults of reading that leave the rest of the file to be judged."""
_ROUNDS = 6
"""Taking a value out can leave a hole in what holds it; after so many layers nothing but names is left."""
_DEFAULTED: dict[str, tuple[str, type[Section]]] = {"pool": ("pools", Pool), "route": ("routes", Route)}


def read(paths: Sequence[str], diagnostics: Diagnostics, stdin: IO[bytes] | None = None) -> Source | None:
    """The fleet that the files describe; with errors in the diagnostics, what is left of it, or None."""
    return understand(texts(paths, diagnostics, stdin), diagnostics)


def understand(texts: Sequence[Text], diagnostics: Diagnostics) -> Source | None:
    """The same of texts that were read already."""
    roots = {text.name: text.root for text in texts}
    root = merged(texts, diagnostics)
    if root is None or not isinstance(root.value, dict):
        return None
    legible = {item.code for item in diagnostics if item.severity == "error"} <= _LEGIBLE
    defaults = root.value.get("defaults")
    if defaults is not None:
        _check_defaults(defaults, root, diagnostics)
        root = _with_defaults(root, defaults)
    told = {item.position for item in diagnostics}
    try:
        source = Source(Fleet.model_validate(plain(root)), root, roots, root)
    except ValidationError as error:
        diagnostics.extend(item for item in diagnostics_of(error, root, Fleet) if item.position not in told)
        _check_empty(root, diagnostics)
        return _what_is_left(root, error, roots) if legible else None
    _check_empty(root, diagnostics)
    return source if legible else None


def _what_is_left(root: Node, error: ValidationError, folders: dict[str, str]) -> Source | None:
    left, touched = root, frozenset[Path]()
    for _ in range(_ROUNDS):
        left, more = without_faults(left, error)
        touched |= more
        try:
            fleet = Fleet.model_validate({**plain(left), "version": 1})
        except ValidationError as again:
            error = again
        else:
            return Source(fleet, left, folders, root, touched)
    return None


def merge(section: type[Section], base: Node, own: Node) -> Node:
    """`base` under `own`: maps deeply, lists and scalars replaced; `own`'s choice takes the place of `base`'s."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict):
        return own
    dropped = {
        key for choice in section.CHOICES if any(k in own.value for k in choice.keys) for key in choice.keys
    }  # fmt: skip
    merged = {key: node for key, node in base.value.items() if key not in dropped and key not in own.value}
    for key, node in own.value.items():
        under = base.value.get(key)
        merged[key] = node if under is None else merge(section_below(section, key) or Section, under, node)
    return Node(merged, own.file, own.line, own.column, own.key_line, own.key_column)


def _check_empty(root: Node, diagnostics: Diagnostics) -> None:
    """A key without a value is no choice: `auth:` above lines that were commented out must not open a route."""
    told = {found.path for found in diagnostics}
    for path, node in _empty(root):
        if len(path) > 1 and path not in told:
            hint = "write one, or leave the key out"
            diagnostics.add(Diagnostic("LB014", f"{show(path[-1])} has no value", node.key_position, path, hint))


def _empty(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    if node.value is None:
        yield path, node
    elif isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _empty(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _empty(child, (*path, index))


def _with_defaults(root: Node, defaults: Node) -> Node:
    sections = dict(root.value) if isinstance(root.value, dict) else {}
    for kind, base in defaults.value.items() if isinstance(defaults.value, dict) else ():
        name, section = _DEFAULTED.get(kind, ("", Section))
        objects = sections.get(name)
        if objects is not None and isinstance(objects.value, dict):
            laid = {key: merge(section, base, own) for key, own in objects.value.items()}
            sections[name] = Node(
                laid, objects.file, objects.line, objects.column, objects.key_line, objects.key_column
            )
    return Node(sections, root.file, root.line, root.column)


def _check_defaults(defaults: Node, root: Node, diagnostics: Diagnostics) -> None:
    """Their values by themselves, for a fleet without any object of the kind; what is absent is no fault here."""
    for kind, base in defaults.value.items() if isinstance(defaults.value, dict) else ():
        if kind not in _DEFAULTED or not isinstance(base.value, dict):
            continue
        _, section = _DEFAULTED[kind]
        try:
            section.model_validate(plain(base))
        except ValidationError as error:
            for found in diagnostics_of(error, root, section, ("defaults", kind)):
                if found.code != "LB014":
                    diagnostics.add(found)

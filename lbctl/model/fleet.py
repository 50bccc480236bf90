"""The whole file: `Fleet`, the `defaults` that its objects inherit, and `read`, which reads both from files.

`read` never raises for bad input: all diagnostics are collected, and the result is None.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from pydantic import Field, ValidationError

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, show
from lbctl.model import values as v
from lbctl.model.control import Control, Proxy
from lbctl.model.errors import diagnostics_of
from lbctl.model.listener import Listener
from lbctl.model.load import SourceText, merged, texts
from lbctl.model.node import Node, descend, plain_value, position_of
from lbctl.model.pool import Pool
from lbctl.model.prune import without_faults
from lbctl.model.route import Route
from lbctl.model.section import Section
from lbctl.model.section_cache import SectionCache
from lbctl.model.shape import section_below


class Defaults(Section):
    """Values that all pools and routes inherit. Inherited values are checked like values in the objects themselves."""

    pool: dict[str, Any] = Field({}, description="Default values for the keys of a pool.")
    route: dict[str, Any] = Field({}, description="Default values for the keys of a route.")


class Fleet(Section):
    version: Literal[1] = Field(description="Version of the format; required in every file.")
    defaults: Defaults = Field(
        Defaults.default(),
        description="Default values for all pools and routes. Maps are merged deeply, lists are replaced as a whole, "
        "and an explicit choice replaces a default choice.",
    )
    gpus: dict[v.Gpu, v.PositiveNumber] = Field(
        {},
        description="Relative throughput of GPU types (A100-80GB = 5). Entries extend and override the built-in table.",
    )
    listeners: dict[v.Name, Listener] = Field({}, description="Addresses that accept client requests.")
    routes: dict[v.Name, Route] = Field({}, description="Rules that send requests to pools.")
    pools: dict[v.Name, Pool] = Field({}, description="Replicas that serve the same model.")
    proxies: dict[v.Name, Proxy] = Field(
        {}, description="Proxies of this fleet. Without `proxies`, `render -t KIND` uses the oldest supported version."
    )
    control: Control = Field(Control.default(), description="The control plane, `lbctl serve`.")


@dataclass(frozen=True, slots=True)
class FleetSource:
    """A fleet as written, both as typed values and as a tree with positions that includes the defaults.

    If the fleet has faults, this is the part without the faulty values. Use it only to find further faults.
    """

    fleet: Fleet
    """The fleet as typed values."""
    root: Node
    """The fleet as a tree with positions."""
    roots: dict[str, str]
    """Maps each file to the directory that its relative paths must not leave."""
    original: Node
    """The tree before faulty values were removed."""
    pruned: frozenset[Path] = frozenset()
    """The objects from which faulty values were removed."""
    target_contents: Mapping[str, bytes] = field(default_factory=dict)
    """Maps each path of a targets file or an own-lines file to the content to use instead of reading the file."""
    withheld: tuple[str, ...] = ()
    """Files and directories of the running control plane, which no fleet may name."""

    def names(self, section: str) -> Collection[str]:
        """Return all names in a section, including the names of faulty objects."""
        node = descend(self.original, (section,))
        return node.value.keys() if node is not None and isinstance(node.value, dict) else ()


_RECOVERABLE = frozenset({"LB008", "LB009", "LB010", "LB012", "LB501"})
"""Codes of faults after which the rest of the file can still be checked."""
_MAX_ROUNDS = 6
"""Removing a value can invalidate the map that contains it. After this many rounds, the fleet is not checked any
further."""
_SECTIONS_WITH_DEFAULTS: dict[str, tuple[str, type[Section]]] = {"pool": ("pools", Pool), "route": ("routes", Route)}


def read(paths: Sequence[str], diagnostics: Diagnostics, stdin: IO[bytes] | None = None) -> FleetSource | None:
    """Read the fleet from files. If the diagnostics contain errors, return the valid part, or None."""
    return parse(texts(paths, diagnostics, stdin), diagnostics)


def parse(
    texts: Sequence[SourceText], diagnostics: Diagnostics, cache: SectionCache | None = None
) -> FleetSource | None:
    """Parse texts that have already been read; otherwise, this is the same as `read`.

    `cache` contains the pools and routes of the last fleet, and is updated with those in this fleet.
    """
    cache = cache or SectionCache()
    roots = {text.name: text.root for text in texts}
    root = merged(texts, diagnostics)
    if root is None or not isinstance(root.value, dict):
        return None
    recoverable = {diagnostic.code for diagnostic in diagnostics if diagnostic.severity == "error"} <= _RECOVERABLE
    defaults = root.value.get("defaults")
    if defaults is not None:
        _check_defaults(defaults, root, diagnostics)
        root = _with_defaults(root, defaults)
    reported = {diagnostic.position for diagnostic in diagnostics}
    known = cache.with_known(root)
    try:
        source = FleetSource(Fleet.model_validate(known), root, roots, root)
    except ValidationError as error:
        diagnostics.extend(fault for fault in diagnostics_of(error, root, Fleet) if fault.position not in reported)
        _check_empty(root, plain_value(root), diagnostics)
        return _partial_source(root, error, roots) if recoverable else None
    if _check_empty(root, known, diagnostics):
        cache.keep(root, {"pools": source.fleet.pools, "routes": source.fleet.routes})
    return source if recoverable else None


def _partial_source(root: Node, error: ValidationError, roots: dict[str, str]) -> FleetSource | None:
    remaining, pruned = root, frozenset[Path]()
    for _ in range(_MAX_ROUNDS):
        remaining, objects = without_faults(remaining, error)
        pruned |= objects
        try:
            fleet = Fleet.model_validate({**plain_value(remaining), "version": 1})
        except ValidationError as next_error:
            error = next_error
        else:
            return FleetSource(fleet, remaining, roots, root, pruned)
    return None


def _check_empty(root: Node, values: object, diagnostics: Diagnostics) -> bool:
    """Report keys without a value, and return whether each key has one.

    For example, `auth:` above lines that are commented out must not open a route. Validated sections in `values` have
    already passed this check.
    """
    empty = [path for path in _empty(values) if len(path) > 1]
    reported = {diagnostic.path for diagnostic in diagnostics}
    for path in empty:
        if path not in reported:
            hint = "write a value, or remove the key"
            position = position_of(root, path, key=True)
            diagnostics.add(Diagnostic("LB014", f"{show(path[-1])} has no value", position, path, hint))
    return not empty


def _empty(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each key and list item without a value."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, child in value.items():
            if child is None or isinstance(child, dict | list):
                yield from _empty(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if child is None or isinstance(child, dict | list):
                yield from _empty(child, (*path, index))


def _with_defaults(root: Node, defaults: Node) -> Node:
    sections = dict(root.value) if isinstance(root.value, dict) else {}
    for kind, base in defaults.value.items() if isinstance(defaults.value, dict) else ():
        name, section = _SECTIONS_WITH_DEFAULTS.get(kind, ("", Section))
        objects = sections.get(name)
        if objects is not None and isinstance(objects.value, dict):
            merged = {key: _merge(section, base, own) for key, own in objects.value.items()}
            sections[name] = Node(
                merged, objects.file, objects.line, objects.column, objects.key_line, objects.key_column
            )
    return Node(sections, root.file, root.line, root.column)


def _check_defaults(defaults: Node, root: Node, diagnostics: Diagnostics) -> None:
    """Check the values of `defaults` on their own; missing keys are allowed.

    Otherwise, they would remain unchecked in a fleet without such objects.
    """
    for kind, base in defaults.value.items() if isinstance(defaults.value, dict) else ():
        if kind not in _SECTIONS_WITH_DEFAULTS or not isinstance(base.value, dict):
            continue
        _, section = _SECTIONS_WITH_DEFAULTS[kind]
        try:
            section.model_validate(plain_value(base))
        except ValidationError as error:
            for diagnostic in diagnostics_of(error, root, section, ("defaults", kind)):
                if diagnostic.code != "LB014":
                    diagnostics.add(diagnostic)


def _merge(section: type[Section], base: Node, own: Node) -> Node:
    """Merge `own` over `base`: maps deeply, lists and scalars as a whole.

    A choice in `own` replaces the one in `base`.
    """
    if not isinstance(base.value, dict) or not isinstance(own.value, dict):
        return own
    dropped = {
        key for choice in section.CHOICES if any(name in own.value for name in choice.keys) for key in choice.keys
    }  # fmt: skip
    merged = {key: node for key, node in base.value.items() if key not in dropped and key not in own.value}
    for key, node in own.value.items():
        inherited = base.value.get(key)
        merged[key] = node if inherited is None else _merge(section_below(section, key) or Section, inherited, node)
    return Node(merged, own.file, own.line, own.column, own.key_line, own.key_column, own.text)

"""The input to every pass: the fleet as written, the diagnostics, and facts from the registries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, Position, did_you_mean, show
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.model.fleet import Fleet, FleetSource
from lbctl.model.node import position_of
from lbctl.model.prune import original_path
from lbctl.model.section import Section
from lbctl.model.section_cache import SectionCache

Version = tuple[int, ...]
_Resolved = TypeVar("_Resolved")
_INDEPENDENT_CODES = frozenset({"LB101", "LB102", "LB103", "LB204"})
"""Codes that report names that do not exist. They are valid even if other parts of the fleet are missing."""
_MAX_LISTED = 16
"""Maximum number of known names listed in a hint."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A replica listed in a targets file."""

    position: Position
    target: str
    """The replica's address."""


@dataclass(frozen=True, slots=True)
class ProxyKind:
    """Properties of a proxy kind that the passes need, as stated by its target."""

    oldest: Version
    """Minimum version that lbctl supports."""
    own_line_places: Mapping[str, OwnLinesPlace]
    """Maps each `include` key to the corresponding place in the configuration."""
    fragment_example: str
    """Example path for a fragment. Empty if the kind does not support fragments."""
    is_kubernetes: bool
    """Whether the proxy is rendered as Kubernetes objects rather than as configuration files."""
    companions: Callable[[Proxy, Sequence[Pool]], Sequence[str]]
    """Returns the files with fixed names that such a proxy has in addition to its configuration."""


@dataclass(frozen=True, slots=True)
class Context:
    """The fleet as written, and the collector for the passes' findings."""

    source: FleetSource
    kinds: Mapping[str, ProxyKind]
    """Maps each proxy kind to its properties."""
    diagnostics: Diagnostics
    """The passes' findings."""
    requires_own_lines: bool = True
    """Whether a missing own-lines file is an error."""
    cache: SectionCache = field(default_factory=SectionCache)
    """Pools and routes of the previous fleet, by their content."""
    discovered: dict[str, tuple[FileTarget, ...]] = field(default_factory=dict)
    """Maps each pool to the replicas in its targets file, in the file's order.

    The map is filled when the file is read.
    """
    origins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Maps each pool to the index of each replica's entry in the file, if one entry represents several replicas."""

    @property
    def fleet(self) -> Fleet:
        """The fleet as typed objects."""
        return self.source.fleet

    def resolved(
        self,
        place: tuple[str, str],
        section: Section,
        inputs: tuple[object, ...],
        resolve: Callable[[Context], _Resolved],
    ) -> _Resolved:
        """Return the result of `resolve` for a pool or route, using the cache if possible.

        The cache is used if the section has not changed and neither have `inputs`, which are the values outside the
        section that `resolve` reads. A result with findings is not cached, because their positions can change even if
        the values do not.
        """

        def compiled() -> tuple[_Resolved, bool]:
            findings = Diagnostics()
            result = resolve(replace(self, diagnostics=findings))
            self.diagnostics.extend(findings)
            return result, not findings

        return self.cache.derived("compiled", place, section, inputs, compiled)

    def error(self, code: str, message: str, path: Path, hint: str = "", key: bool = False) -> None:
        """Report an error at `path`, or at the position of its key if `key` is set."""
        self._add(Diagnostic(code, message, self.position(path, key), path, hint))

    def position(self, path: Path, key: bool = False) -> Position:
        """Return the position of the value at `path`, or of its nearest ancestor written by the user."""
        target = self._file_target(path)
        return position_of(self.source.root, self._written(path), key) if target is None else target.position

    def missing(self, code: str, message: str, path: Path, hint: str, *, required: bool) -> None:
        """Report a missing file at `path`, as an error if it is required and as a warning otherwise."""
        self._add(Diagnostic(code, message, self.position(path), path, hint, "error" if required else "warning"))

    def warn(self, code: str, message: str, path: Path, hint: str = "") -> None:
        """Report a warning at `path`."""
        self._add(Diagnostic(code, message, self.position(path), path, hint, "warning"))

    def _file_target(self, path: Path) -> FileTarget | None:
        targets = self.discovered.get(str(path[1]), ()) if path[:1] == ("pools",) and path[2:3] == ("replicas",) else ()
        index = path[3] if len(path) > 3 else None
        return targets[index] if isinstance(index, int) and index < len(targets) else None

    def _written(self, path: Path) -> Path:
        """Return the path with the index of the replica's entry in the file."""
        origins = self.origins.get(str(path[1]), ()) if path[:1] == ("pools",) and path[2:3] == ("replicas",) else ()
        index = path[3] if len(path) > 3 else None
        return (*path[:3], origins[index], *path[4:]) if isinstance(index, int) and index < len(origins) else path

    def _add(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic.

        If an invalid value was removed from an object, only codes that do not depend on it are reported.
        """
        if diagnostic.path[:2] in self.source.pruned and diagnostic.code not in _INDEPENDENT_CODES:
            return
        target = self._file_target(diagnostic.path)
        if target is not None:
            message = f"target {show(target.target)}: {diagnostic.message}"
            self.diagnostics.add(replace(diagnostic, message=message, path=(*diagnostic.path[:2], "discovery", "file")))
            return
        written = self._written(diagnostic.path)
        path = original_path(self.source.original, self.source.root, written) if self.source.pruned else written
        self.diagnostics.add(replace(diagnostic, path=path))

    def check_name(
        self, code: str, noun: str, name: str, names: Collection[str], path: Path, key: bool = False
    ) -> bool:
        """Return whether `name` is one of `names`. If not, report `code` with a suggestion."""
        if name in names:
            return True
        ordered = list(names)
        ellipsis = ", …" if len(names) > _MAX_LISTED else ""
        listing = f"known: {', '.join(ordered[:_MAX_LISTED])}{ellipsis}" if names else f"the fleet has no {noun}s"
        hint = did_you_mean(name, ordered) or listing
        self.error(code, f"there is no {noun} {show(name)}", path, hint, key)
        return False

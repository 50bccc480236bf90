"""What every pass is given: the fleet as written, where to report, and what the registries know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, Position, did_you_mean, show
from lbctl.model.fleet import Fleet, Source
from lbctl.model.node import find
from lbctl.model.prune import whole_path

Version = tuple[int, ...]
_BY_ITSELF = frozenset({"LB101", "LB102", "LB103", "LB204"})
"""Names that are not there: true whatever else is missing."""
_LISTED = 16
"""How many known names a hint lists."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """A replica that stands in a file of targets: where, and under which address."""

    position: Position
    target: str


@dataclass(frozen=True, slots=True)
class Context:
    """`oldest`: kind of proxy → the oldest version that lbctl renders for. `discovered`: pool → the replicas that a
    file of targets names, in its order; filled when that is read."""

    source: Source
    oldest: Mapping[str, Version]
    diagnostics: Diagnostics
    discovered: dict[str, tuple[Discovered, ...]] = field(default_factory=dict)

    @property
    def fleet(self) -> Fleet:
        return self.source.fleet

    def error(self, code: str, message: str, path: Path, hint: str = "", key: bool = False) -> None:
        self._add(Diagnostic(code, message, self.position(path, key), path, hint))

    def position(self, path: Path, key: bool = False) -> Position:
        """Of the value at `path`, or of the nearest thing around it that was written."""
        found = self._discovered(path)
        return find(self.source.root, path, key) if found is None else found.position

    def warn(self, code: str, message: str, path: Path, hint: str = "") -> None:
        self._add(Diagnostic(code, message, self.position(path), path, hint, "warning"))

    def _discovered(self, path: Path) -> Discovered | None:
        known = self.discovered.get(str(path[1]), ()) if path[:1] == ("pools",) and path[2:3] == ("replicas",) else ()
        index = path[3] if len(path) > 3 else None
        return known[index] if isinstance(index, int) and index < len(known) else None

    def _add(self, found: Diagnostic) -> None:
        """Of an object that a faulty value was taken from, only what a value that is there says by itself."""
        if found.path[:2] in self.source.touched and found.code not in _BY_ITSELF:
            return
        told = self._discovered(found.path)
        if told is not None:
            message = f"target {show(told.target)}: {found.message}"
            self.diagnostics.add(replace(found, message=message, path=(*found.path[:2], "discovery", "file")))
            return
        path = whole_path(self.source.whole, self.source.root, found.path) if self.source.touched else found.path
        self.diagnostics.add(replace(found, path=path))

    def known(self, code: str, what: str, name: str, names: Iterable[str], path: Path, key: bool = False) -> bool:
        """Whether `name` is one of `names`; reported with what may have been meant, where it is not."""
        names = list(names)
        if name in names:
            return True
        more = ", …" if len(names) > _LISTED else ""
        listed = f"known: {', '.join(names[:_LISTED])}{more}" if names else f"the fleet has no {what}s"
        hint = did_you_mean(name, names) or listed
        self.error(code, f"there is no {what} {show(name)}", path, hint, key)
        return False

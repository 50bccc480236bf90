"""What every pass is given: the fleet as written, where to report, and what the registries know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, did_you_mean, show
from lbctl.model.fleet import Fleet, Source
from lbctl.model.node import find
from lbctl.model.prune import whole_path

Version = tuple[int, ...]
_BY_ITSELF = frozenset({"LB101", "LB102", "LB103", "LB204"})
"""Names that are not there: true whatever else is missing."""
_LISTED = 16
"""How many known names a hint lists."""


@dataclass(frozen=True, slots=True)
class Context:
    """`oldest`: kind of proxy → the oldest version that lbctl renders for."""

    source: Source
    oldest: Mapping[str, Version]
    diagnostics: Diagnostics

    @property
    def fleet(self) -> Fleet:
        return self.source.fleet

    def error(self, code: str, message: str, path: Path, hint: str = "", key: bool = False) -> None:
        self._add(Diagnostic(code, message, find(self.source.root, path, key), path, hint))

    def warn(self, code: str, message: str, path: Path, hint: str = "") -> None:
        self._add(Diagnostic(code, message, find(self.source.root, path), path, hint, "warning"))

    def _add(self, found: Diagnostic) -> None:
        """Of an object that a faulty value was taken from, only what a value that is there says by itself."""
        if found.path[:2] in self.source.touched and found.code not in _BY_ITSELF:
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

"""What every pass is given: the fleet as written, where to report, and what the registries know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, did_you_mean, show
from lbctl.model.fleet import Fleet, Source
from lbctl.model.node import find

Version = tuple[int, ...]


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
        position = find(self.source.root, path, key)
        self.diagnostics.add(Diagnostic(code, message, position, path, hint))

    def warn(self, code: str, message: str, path: Path, hint: str = "") -> None:
        position = find(self.source.root, path)
        self.diagnostics.add(Diagnostic(code, message, position, path, hint, "warning"))

    def known(self, code: str, what: str, name: str, names: Iterable[str], path: Path, key: bool = False) -> bool:
        """Whether `name` is one of `names`; reported with what may have been meant, where it is not."""
        names = list(names)
        if name in names:
            return True
        hint = did_you_mean(name, names) or f"known: {', '.join(names[:8]) or 'none'}"
        self.error(code, f"there is no {what} {show(name)}", path, hint, key)
        return False

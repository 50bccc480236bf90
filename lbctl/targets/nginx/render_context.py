"""What the parts of a configuration ask of its top: maps, draws, zones; and the findings of a rendering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.nginx import quote
from lbctl.targets.nginx.blocks import Draw, Geo, Map, Zone
from lbctl.targets.nginx.names import Lookups
from lbctl.targets.target import File
from lbctl.targets.token import Token


@dataclass(slots=True)
class RenderContext:
    """One for each rendering."""

    view: View
    maps: list[Map] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    geos: list[Geo] = field(default_factory=list)
    zones: list[Zone] = field(default_factory=list)
    lookups: Lookups = field(default_factory=Lookups)
    findings: list[Diagnostic] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    conditions: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)

    @property
    def version(self) -> tuple[int, ...]:
        return self.view.proxy.version

    def map(
        self,
        source: str,
        variable: str,
        entries: Iterable[tuple[Token, Token]],
        volatile: bool = False,
        include: Token | None = None,
    ) -> str:
        """Adds a map; `source` is of our own making (`$name` means the variable). Returns the variable."""
        self.maps.append(Map(quote.script(source), Token(variable), tuple(entries), volatile, include))
        return variable

    def condition(self, source: str, patterns: tuple[str, ...], path: Path = (), may_give_up: bool = False) -> str:
        """The variable that is 1 where `source` matches one of `patterns`, else 0; or 2 where an expression that
        `may_give_up` did so (PCRE's limits, on long text): then a map has its default, and tries no later entry."""
        known = self.conditions.get((source, patterns))
        if known:
            return known
        variable = f"$lb_c{len(self.conditions)}"
        self.conditions[source, patterns] = variable
        matches = ((quote.plain(f"~{pattern}", path), Token("1")) for pattern in patterns)
        if not may_give_up:
            return self.map(source, variable, ((Token("default"), Token("0")), *matches))
        return self.map(source, variable, ((Token("default"), Token("2")), *matches, (quote.plain("~^"), Token("0"))))

    def warn(self, feature: str, path: Path, message: str, hint: str = "") -> None:
        found = Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning")
        if found not in self.findings:
            self.findings.append(found)

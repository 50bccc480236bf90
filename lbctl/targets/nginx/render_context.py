"""The state of one rendering, which all parts of a configuration add to, and the variables of each listener.

Parts add maps, draws, zones and diagnostics.
"""

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


@dataclass(frozen=True, slots=True)
class ListenerScope:
    """The variable names of a listener, and whether some peers are trusted."""

    listener: str
    number: int
    request_id_header: str
    """Header that contains the request ID."""
    request_id: str
    """Variable that contains the request ID."""
    forwarded_for: str
    """Variable that contains the value of X-Forwarded-For."""
    forwarded_proto: str
    """Variable that contains the value of X-Forwarded-Proto."""
    claim_headers: tuple[str, ...]
    """Headers that only a trusted peer may send, except x-forwarded-for and x-forwarded-proto."""
    address_headers: tuple[str, ...]
    """Headers that carry the client's address to replicas."""
    trusted: str | None
    """Variable that is 1 for a trusted peer; None if the listener does not trust any."""


@dataclass(slots=True)
class RenderContext:
    """The state of one rendering."""

    view: View
    maps: list[Map] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    geos: list[Geo] = field(default_factory=list)
    zones: list[Zone] = field(default_factory=list)
    lookups: Lookups = field(default_factory=Lookups)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    upstream_numbers: dict[str, int] = field(default_factory=dict)
    """Maps each upstream to the number in the variable for its picks."""
    conditions: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)
    """Maps each (source, expressions) pair to the variable that is 1 if one of the expressions matches."""
    _mapped: set[str] = field(default_factory=set)
    """Variables of the maps."""

    @property
    def version(self) -> tuple[int, ...]:
        """nginx version of the configuration."""
        return self.view.proxy.version

    def map(
        self,
        source: str,
        variable: str,
        entries: Iterable[tuple[Token, Token]],
        volatile: bool = False,
        include: Token | None = None,
        included: int = 0,
    ) -> str:
        """Add a map and return its variable.

        `source` is lbctl's own text, in which `$name` is a variable. `include`: a file with `included` entries.
        """
        self._mapped.add(variable)
        self.maps.append(Map(quote.script(source), Token(variable), tuple(entries), volatile, include, included))
        return variable

    def has_map(self, variable: str) -> bool:
        """Return whether this variable has a map."""
        return variable in self._mapped

    def condition(self, source: str, patterns: tuple[str, ...], path: Path = (), may_give_up: bool = False) -> str:
        """Return the variable that is 1 if `source` matches one of `patterns`, otherwise 0.

        With `may_give_up`, it is 2 if an expression exceeds PCRE's limits on a long text: the map then uses its default
        without trying later entries.
        """
        existing = self.conditions.get((source, patterns))
        if existing:
            return existing
        variable = f"$lb_c{len(self.conditions)}"
        self.conditions[source, patterns] = variable
        matches = ((quote.plain(f"~{pattern}", path), Token("1")) for pattern in patterns)
        if not may_give_up:
            return self.map(source, variable, ((Token("default"), Token("0")), *matches))
        return self.map(source, variable, ((Token("default"), Token("2")), *matches, (quote.plain("~^"), Token("0"))))

    def warn(self, feature: str, path: Path, message: str, hint: str = "") -> None:
        """Add a warning about a feature, unless an equal warning exists."""
        self.add(Diagnostic(BY_ID[feature].code, message, path=path, hint=hint, severity="warning"))

    def add(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic, unless an equal one exists."""
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

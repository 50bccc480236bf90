"""Diagnostics, which consist of a problem, its position, and a hint on how to fix it.

A `Diagnostic` is a value, never an exception that ends the run: readers and compilers add diagnostics to a
`Diagnostics` collection and continue, so that one run reports every problem. Only the command line decides how to
handle them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from lbctl.base.urls import without_user

Severity = Literal["error", "warning", "note"]
Path = tuple[str | int, ...]
"""The path of a value in the YAML, with map keys as strings and list indexes as ints: ("pools", "llama", "replicas",
0)."""

_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_LITERALS = {None: "null", True: "true", False: "false"}
_MAX_SHOWN = 80
"""Maximum length of a value in a message, in characters."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in a file."""

    file: str
    """File name as specified by the user."""
    line: int = 0
    """Line number, counted from 1 as in editors; 0 means the whole file."""
    column: int = 0
    """Column number, counted from 1 as in editors."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about the user's input."""

    code: str
    """Diagnostic code, which is `LB` followed by three digits."""
    message: str
    """The problem, without its position."""
    position: Position | None = None
    """Position of the problem, or None if the problem is not in a file."""
    path: Path = ()
    """Path of the value in the YAML. Empty if the problem does not concern a value."""
    hint: str = ""
    """How to fix the problem; may be empty."""
    severity: Severity = "error"

    def __str__(self) -> str:
        position = f"{self.position}: " if self.position else ""
        keys = f" {dotted(self.path)}:" if self.path else ":"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{position}{self.severity} {self.code}{keys} {self.message}{hint}"


class Diagnostics:
    """A growing collection of diagnostics, without duplicates."""

    def __init__(self) -> None:
        self._items: dict[Diagnostic, None] = {}
        self._silenced: Callable[[Diagnostic], bool] | None = None

    def silence(self, silenced: Callable[[Diagnostic], bool]) -> None:
        """Drop current and future diagnostics for which `silenced` returns true. Errors are always kept."""
        self._silenced = silenced
        self._items = {item: None for item in self._items if self._is_reported(item)}

    def add(self, diagnostic: Diagnostic) -> None:
        """Add a diagnostic unless it is already present or silenced."""
        if self._is_reported(diagnostic):
            self._items.setdefault(diagnostic)

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Add each diagnostic that is not already present or silenced."""
        for diagnostic in diagnostics:
            self.add(diagnostic)

    def __iter__(self) -> Iterator[Diagnostic]:
        """Iterate in the order of files and lines. At the same position, the most severe diagnostic comes first."""
        return iter(sorted(self._items, key=_order))

    def __len__(self) -> int:
        return len(self._items)

    def _is_reported(self, diagnostic: Diagnostic) -> bool:
        return self._silenced is None or diagnostic.severity == "error" or not self._silenced(diagnostic)

    @property
    def failed(self) -> bool:
        """Whether at least one diagnostic is an error."""
        return any(item.severity == "error" for item in self._items)


def as_json(diagnostic: Diagnostic) -> dict[str, str | int | None]:
    """Return the diagnostic as a JSON object for commands and the API. Unknown values are null."""
    position = diagnostic.position
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.hint or None,
        "path": dotted(diagnostic.path) or None,
        "file": position.file if position else None,
        "line": position.line or None if position else None,
        "column": position.column or None if position else None,
    }


def dotted(path: Path) -> str:
    """Return the path in dotted form. For example, `("pools", "a", "replicas", 0)` becomes `pools.a.replicas[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return show(text, limit=200) if not text.isprintable() else text


def quoting_hint(value: object) -> str:
    """Return a hint to quote the value.

    It is empty for a list or map, because quotes would not turn it into a string.
    """
    if isinstance(value, list | dict):
        return ""
    return f'quote it: "{value}"' if type(value) is int else "quote it"


def show(value: object, limit: int = _MAX_SHOWN) -> str:
    """Format a user's value as in YAML, with quoted strings, as printable text of at most `limit` characters.

    The user and password of a URL are hidden.
    """
    if value is None or isinstance(value, bool):
        return _LITERALS[value]
    text = without_user(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the candidates closest to `word`, or an empty string if none is close.

    Candidates that start with `word` take precedence over candidates with a similar spelling.
    """
    folded = {candidate.casefold(): candidate for candidate in candidates}
    prefix = word.casefold()
    nearest = [name for key, name in folded.items() if len(prefix) > 2 and key.startswith(prefix)][:3]
    if not nearest:
        from difflib import get_close_matches

        nearest = [folded[key] for key in get_close_matches(prefix, list(folded), n=1, cutoff=0.6)]
    return f"did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""


def _order(diagnostic: Diagnostic) -> tuple[str, int, int, int, str, str]:
    position = diagnostic.position or Position("")
    return (
        position.file,
        position.line,
        position.column,
        _RANK[diagnostic.severity],
        diagnostic.code,
        diagnostic.message,
    )

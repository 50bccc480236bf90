"""What is wrong, where, and what would be right.

A `Diagnostic` is a value, never an exception that ends the run: readers and compilers add them to a `Diagnostics`
collection and go on, so that one run shows every fault. Only the command line decides what to do about them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
Path = tuple[str | int, ...]
"""The way to a value in the YAML: map keys as strings, list positions as ints: ("pools", "llama", "replicas", 0)."""

_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_WORDS = {None: "null", True: "true", False: "false"}
_SHOWN = 80
"""Longest value, in characters, that a message repeats."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a file; `line` and `column` count from 1, as editors do. 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `code` is LB and three digits (contract/cli.md); `hint` says what would be right."""

    code: str
    message: str
    position: Position | None = None
    path: Path = ()
    hint: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.position}: " if self.position else ""
        path = f" {dotted(self.path)}:" if self.path else ":"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.severity} {self.code}{path} {self.message}{hint}"


class Diagnostics:
    """A growing list of findings, without repeats."""

    def __init__(self) -> None:
        self._items: dict[Diagnostic, None] = {}
        self._silenced: Callable[[Diagnostic], bool] | None = None

    def silence(self, silenced: Callable[[Diagnostic], bool]) -> None:
        """Those of which `silenced` says so are left out, of what is here and of what comes; errors never are."""
        self._silenced = silenced
        self._items = {item: None for item in self._items if self._counts(item)}

    def add(self, diagnostic: Diagnostic) -> None:
        if self._counts(diagnostic):
            self._items.setdefault(diagnostic)

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            self.add(diagnostic)

    def __iter__(self) -> Iterator[Diagnostic]:
        """In the order of files and lines; in one place, the worst first."""
        return iter(sorted(self._items, key=_order))

    def __len__(self) -> int:
        return len(self._items)

    def _counts(self, item: Diagnostic) -> bool:
        return self._silenced is None or item.severity == "error" or not self._silenced(item)

    @property
    def failed(self) -> bool:
        return any(item.severity == "error" for item in self._items)


class ConfigError(Exception):
    """The fleet cannot be used; `diagnostics` says why. Raised once, after everything was collected."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = diagnostics


def dotted(path: Path) -> str:
    """`("pools", "a", "replicas", 0)` → `pools.a.replicas[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return show(text, limit=200) if not text.isprintable() else text


def show(value: object, limit: int = _SHOWN) -> str:
    """A user's value as YAML has it, strings quoted, cut to `limit` characters, with nothing unprintable in it."""
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the nearest known word or those that go on from this one, else the empty string."""
    folded = {item.casefold(): item for item in known}
    start = word.casefold()
    near = [name for key, name in folded.items() if len(start) > 2 and key.startswith(start)][:3]
    near = near or [folded[key] for key in difflib.get_close_matches(start, list(folded), n=1, cutoff=0.6)]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def _order(item: Diagnostic) -> tuple[str, int, int, int, str, str]:
    position = item.position or Position("")
    return (position.file, position.line, position.column, _RANK[item.severity], item.code, item.message)

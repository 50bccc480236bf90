"""Reads an nginx configuration and its includes as statements.

`crossplane` parses each file. It provides lines but no columns, so each directive's column is found by searching its
line. Includes are resolved here rather than by crossplane, so that files outside the main file's directory, missing
files, cycles and too many files are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer.limits import MAX_FILES, read_text
from lbctl.importer.nginx.includes import is_harmless
from lbctl.importer.statement import Statement

_MAX_DEPTH = 64
_MIN_ARGUMENTS = {
    **dict.fromkeys(
        ("location", "return", "upstream", "listen", "proxy_pass", "grpc_pass", "include", "if", "mirror", "geo"), 1
    ),
    **dict.fromkeys(("set", "map", "split_clients", "limit_req_zone", "limit_conn_zone", "rewrite"), 2),
    **dict.fromkeys(("allow", "deny", "access_log", "error_page", "proxy_hide_header", "proxy_set_header"), 1),
}
"""crossplane checks the number of arguments only in complete files, not in conf.d files."""
_PATTERN = re.compile(r"[*?\[]")
_HINT = "copy it into the main file's directory or a subdirectory, change the path in `include`, and import again"
_CLOSING_HINT = f"{_HINT}; until then, routes that it may protect refuse all requests"
Parsed = Mapping[str, Any]


def read(file: str, diagnostics: Diagnostics) -> tuple[Statement, ...]:
    """Return the file's directives, with included directives in place."""
    return tuple(_Reader(Path(file).parent, diagnostics).file(Path(file), file))


class _Reader:
    """Reads a configuration's files."""

    def __init__(self, root: Path, diagnostics: Diagnostics) -> None:
        self._root = root
        self._diagnostics = diagnostics
        self._open: list[Path] = []
        self._count = 0
        self._depth = 0
        """Number of blocks and includes that enclose the current position."""

    def file(self, path: Path, name: str) -> Iterator[Statement]:
        """Yield the directives of one file."""
        self._count += 1
        text = read_text(path, name, self._diagnostics)
        parsed = self._parsed(path, name, text) if text is not None else None
        if parsed is None or text is None:
            return
        self._open.append(path.resolve())
        yield from self._statements(parsed, name, _Columns(text))
        self._open.pop()

    def _parsed(self, path: Path, name: str, text: str) -> list[Parsed] | None:
        import crossplane

        if self._depth + _depth(text) > _MAX_DEPTH:
            self._fail(Position(name, 1, 1), f"blocks and includes are nested more than {_MAX_DEPTH} levels deep")
            return None
        result = crossplane.parse(str(path), single=True, strict=False, check_ctx=False)
        for error in result["errors"]:
            message = str(error["error"]).partition(f" in {path}")[0]
            self._fail(Position(name, error.get("line") or 1, 1), f"invalid nginx configuration: {message}")
        return None if result["errors"] else list(result["config"][0]["parsed"])

    def _statements(self, parsed: Iterable[Parsed], name: str, columns: _Columns) -> Iterator[Statement]:
        for item in parsed:
            position = Position(name, item["line"], columns.of(item["line"], item["directive"]))
            if item["directive"] == "include" and len(item["args"]) == 1:
                yield self._include(item["args"][0], position)
                continue
            tokens = (item["directive"], *item["args"])
            if len(item["args"]) < _MIN_ARGUMENTS.get(item["directive"], 0):
                self._fail(position, f"invalid nginx configuration: {item['directive']} needs an argument")
            block = self._within(self._statements(item.get("block", ()), name, columns))
            unread = "the include has more than one argument" if item["directive"] == "include" else ""
            yield Statement(position, tokens, block, "block" in item, unread)

    def _within(self, block: Iterator[Statement]) -> tuple[Statement, ...]:
        self._depth += 1
        statements = tuple(block)
        self._depth -= 1
        return statements

    def _include(self, pattern: str, position: Position) -> Statement:
        """Return the include with its files' directives."""
        files, problems = self._matches(pattern)
        block = list[Statement]()
        for file in files:
            path = Path(file)
            if problem := self._problem(path):
                problems.append(problem)
            else:
                block += self._within(self.file(path, file))
        hint = _HINT if is_harmless(pattern) else _CLOSING_HINT
        for problem in problems:
            message = f"the include {pattern!r} was not read: {problem}"
            self._diagnostics.add(Diagnostic("LB983", message, position, hint=hint, severity="warning"))
        return Statement(position, ("include", pattern), tuple(block), True, "; ".join(problems))

    def _matches(self, pattern: str) -> tuple[list[str], list[str]]:
        """Return the files that match a pattern, and the reason if the pattern was not followed."""
        parts = Path(pattern).parts
        fixed = next((index for index, part in enumerate(parts) if _PATTERN.search(part)), None)
        if fixed is None:
            return [str(self._root / pattern)], []
        directory = self._root.joinpath(*parts[:fixed])
        if problem := self._leads_out(directory):
            return [], [problem]
        if not directory.is_dir():
            return [], ["no such directory"]
        rest = [re.sub(r"\*+", "*", part) for part in parts[fixed:]]
        found = directory.glob("/".join(rest))
        return sorted(str(path) for path in found if not _is_hidden(path, rest)), []

    def _leads_out(self, path: Path) -> str:
        """Return the reason why a path must not be followed, or "" if it is below the main file's directory."""
        try:
            is_below = path.resolve().is_relative_to(self._root.resolve())
        except (OSError, RuntimeError, ValueError) as error:
            return str(error)
        return "" if is_below else "the path is outside the main file's directory"

    def _problem(self, path: Path) -> str:
        if problem := self._leads_out(path):
            return problem
        resolved = path.resolve()
        if resolved in self._open:
            return "it includes itself"
        if self._count >= MAX_FILES:
            return f"the configuration has more than {MAX_FILES} files"
        return "" if resolved.is_file() else "no such file"

    def _fail(self, position: Position, message: str) -> None:
        self._diagnostics.add(Diagnostic("LB980", message, position))


def _is_hidden(path: Path, patterns: Sequence[str]) -> bool:
    """Return whether part of a path, but not the pattern for it, begins with a dot. nginx skips such files."""
    parts = path.parts[-len(patterns) :]
    return any(
        part.startswith(".") and not pattern.startswith(".") for part, pattern in zip(parts, patterns, strict=True)
    )


class _Columns:
    """Finds the column of each directive, which is the next occurrence of its name on its line."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._end: dict[int, int] = {}

    def of(self, line: int, name: str) -> int:
        """Return the column, from 1, of the next directive with that name on the line."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        start = self._end.get(line, 0)
        index = text.find(name, start)
        if index < 0:
            return len(text) - len(text.lstrip()) + 1
        self._end[line] = index + len(name)
        return index + 1


def _depth(text: str) -> int:
    """Return an upper bound on the nesting depth."""
    depth = deepest = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        deepest = max(deepest, depth)
    return deepest

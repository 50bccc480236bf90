"""Explains the YAML parser's syntax errors in plain words.

libyaml reports errors in the terms of its grammar ("could not find expected ':'"), often at the end of the file. This
module explains the probable mistake at its actual position. An explanation never repeats any of the file's text.
"""

from __future__ import annotations

import re

from yaml import MarkedYAMLError

from lbctl.base.diagnostics import show

_INDENT = "start all keys of a map, and all dashes of a list, in the same column"
_QUOTE = "put the value in quotes"
_NO_TAG = "remove the tag, or put a value that begins with `!` in quotes"
_ESCAPE = "write \\\\ for a backslash, or use single quotes, in which a backslash has no special meaning"

_EXPLANATIONS: tuple[tuple[str, str, str, str], ...] = (
    ("maximum nesting depth", "LB005", "brackets are nested too deeply", "use at most 32 levels"),
    ("undefined tag handle", "LB007", "tags are not supported", _NO_TAG),
    ("while scanning a tag", "LB007", "tags are not supported", _NO_TAG),
    ("while parsing a tag", "LB007", "tags are not supported", _NO_TAG),
    ("while scanning an alias", "LB006", "an unquoted value cannot begin with `*`", _QUOTE),
    ("while scanning an anchor", "LB006", "an unquoted value cannot begin with `&`", _QUOTE),
    ("mapping values are not allowed", "LB004", "unexpected `:`, because no key is allowed here",
     f"put a value that contains `: ` in quotes; {_INDENT}"),
    ("mapping keys are not allowed", "LB004", "unexpected `? `, because no key is allowed here", _QUOTE),
    ("unexpected ':'", "LB004", "an unquoted value within brackets contains a `:`", _QUOTE),
    ("block sequence entries are not allowed", "LB004", "unexpected `- `, because no list item is allowed here",
     "start a list on its own line, below its key"),
    ("could not find expected ':'", "LB004", "this key has no `:`", "write `key: value`"),
    ("did not find expected key", "LB004", "this line does not belong to the map above it", _INDENT),
    ("did not find expected '-' indicator", "LB004", "this line does not belong to the list above it", _INDENT),
    ("did not find expected ',' or", "LB004", "a `,` or the closing bracket is missing before this", ""),
    ("did not find expected node content", "LB004", "a value is missing here",
     "put a value that begins with `[`, such as an IPv6 address, in quotes"),
    ("invalid Unicode character escape", "LB004", "this escape does not represent a character",
     "write the character itself, or \\U and eight digits; surrogates such as \\ud83d are not characters"),
    ("expected hexdecimal number", "LB004", "an escape needs two, four or eight hexadecimal digits", _ESCAPE),
    ("unknown escape character", "LB004", "unknown escape in a double-quoted string", _ESCAPE),
    ("unexpected document indicator", "LB004", "the quote that opens here is never closed", ""),
    ("unexpected end of stream", "LB004", "the quote that opens here is never closed", ""),
    ("expected <document start>", "LB004", "text follows the end of the map", "use one map per file"),
    ("while scanning a directive", "LB004", "a line that begins with `%` is not supported", "remove the line"),
    ("%YAML directive", "LB004", "a line that begins with `%` is not supported", "remove the line"),
    ("incompatible YAML document", "LB004", "this version of YAML is not supported", "remove the %YAML line"),
    ("while scanning a block scalar", "LB004", "a text block (`|` or `>`) does not start correctly",
     "write only `|`, `|-`, `>` or `>-` after the key and indent the text with spaces"),
)  # fmt: skip


def explain(error: MarkedYAMLError, text: str, opened: tuple[int, int]) -> tuple[str, str, str, int, int]:
    """Return the code, message, hint, line and column (counted from 1).

    `opened` is the position of the innermost map or list, or (0, 0).
    """
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = re.split(r"\r\n|\r|\n", text)
    current_line = lines[line] if line < len(lines) else ""
    indent = current_line[: len(current_line) - len(current_line.lstrip(" \t"))]
    if "\t" in indent:
        return "LB004", "this line is indented with a tab", "indent YAML with spaces", line + 1, indent.index("\t") + 1
    if not any(map(str.strip, [current_line[column:], *lines[line + 1 :]])) and (bracket := _bracket(lines, opened)):
        return "LB004", f"the {bracket!r} that opens here is never closed", "", *opened
    if error.problem and error.problem.startswith("found character that cannot start"):
        return (
            "LB004",
            f"a value cannot begin with {show(current_line[column : column + 1])}",
            _QUOTE,
            line + 1,
            column + 1,
        )
    code, message, hint = _explanation(f"{error.context}: {error.problem}")
    if (begin := error.context_mark) and re.match("while scanning (?!a plain)", error.context or ""):
        line, column = begin.line, begin.column
    elif begin and "closing bracket" in message:
        hint = f"the bracket opens at {begin.line + 1}:{begin.column + 1}"
    return code, message, hint, line + 1, column + 1


def _bracket(lines: list[str], opened: tuple[int, int]) -> str:
    """Return the bracket that opens the map or list at `opened`; empty in block style."""
    line, column = opened
    character = lines[line - 1][column - 1 : column] if 0 < line <= len(lines) else ""
    return character if character in ("[", "{") else ""


def _explanation(problem: str) -> tuple[str, str, str]:
    for fragment, code, message, hint in _EXPLANATIONS:
        if fragment in problem:
            return code, message, hint
    return "LB004", f"invalid YAML: {problem}", ""

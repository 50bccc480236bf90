"""Splits a line of an HAProxy configuration into words (configuration manual, section 2.2).

A backslash escapes blanks, quotes, `#` and itself, and is literal elsewhere. `#` begins a comment, and blanks separate
words. Within '…', no character is special. Within "…", `$NAME`, `${NAME}` and `${NAME-default}` are environment
variables. The proxy's environment is unknown during an import, so only defaults are inserted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)(?:-([^}]*))?(?:\[\*\])?\}|([A-Za-z_][A-Za-z0-9_]*))")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{item: item for item in " \\#\"'$"}}


class TokenError(Exception):
    """A line that HAProxy would reject. `column` is counted from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True, slots=True)
class LineToken:
    """A word in a line."""

    text: str
    """The word without quotes and escapes. A variable without a default is kept as `${NAME}`."""
    column: int
    """Column of the first character, from 1."""


def split_line(line: str) -> list[LineToken]:
    """Return the words in a line. Raises TokenError for an unterminated quote or escape."""
    return _Line(line).tokens()


class _Line:
    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0

    def tokens(self) -> list[LineToken]:
        tokens = []
        while self._at < len(self._line):
            character = self._line[self._at]
            if character.isspace():
                self._at += 1
            elif character == "#":
                break
            else:
                column = self._at + 1
                tokens.append(LineToken(self._word(), column))
        return tokens

    def _word(self) -> str:
        parts: list[str] = []
        while self._at < len(self._line) and not self._line[self._at].isspace() and self._line[self._at] != "#":
            parts.append(self._piece())
        return "".join(parts)

    def _piece(self) -> str:
        character = self._line[self._at]
        if character == "\\":
            return self._escape()
        if character == "'":
            return self._single()
        if character == '"':
            return self._double()
        self._at += 1
        return character

    def _escape(self) -> str:
        """Return the text for a backslash and the character that follows.

        If the two characters are not an escape, both are literal.
        """
        character = self._line[self._at + 1 : self._at + 2]
        if character == "x" and re.fullmatch(r"[0-9A-Fa-f]{2}", self._line[self._at + 2 : self._at + 4]):
            self._at += 4
            return chr(int(self._line[self._at - 2 : self._at], 16))
        if character not in _ESCAPES:
            self._at += 1
            return "\\"
        self._at += 2
        return _ESCAPES[character]

    def _single(self) -> str:
        end = self._line.find("'", self._at + 1)
        if end < 0:
            raise TokenError("a quote is not closed", self._at + 1)
        text, self._at = self._line[self._at + 1 : end], end + 1
        return text

    def _double(self) -> str:
        start, parts = self._at, list[str]()
        self._at += 1
        while self._at < len(self._line):
            character = self._line[self._at]
            if character == '"':
                self._at += 1
                return "".join(parts)
            if character == "\\":
                parts.append(self._escape())
            elif character == "$":
                parts.append(self._variable())
            else:
                parts.append(character)
                self._at += 1
        raise TokenError("a quote is not closed", start + 1)

    def _variable(self) -> str:
        match = _VARIABLE.match(self._line, self._at)
        if match is None:
            raise TokenError("a variable needs a name", self._at + 1)
        self._at = match.end()
        return match[2] if match[2] is not None else f"${{{match[1] or match[3]}}}"

"""Path conditions for Envoy, which compares paths as they were sent. Other proxies decode paths first.

Envoy decodes slashes. It rejects paths with malformed escapes or escaped letters and digits (`request_grammar`). Every
other byte may be sent as itself or as `%XX`, in upper or lower case, and means the same to the replica. The expressions
in this module accept both forms, and `%` always begins an escape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/")
"""Bytes that are always sent unescaped."""
_BYTES = frozenset(range(256))
_DIGITS = frozenset(b"0123456789")
_WORD = _DIGITS | frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_SPACE = frozenset(b"\t\n\v\f\r ")
_CATEGORIES = {
    "CATEGORY_DIGIT": _DIGITS,
    "CATEGORY_NOT_DIGIT": _BYTES - _DIGITS,
    "CATEGORY_WORD": _WORD,
    "CATEGORY_NOT_WORD": _BYTES - _WORD,
    "CATEGORY_SPACE": _SPACE,
    "CATEGORY_NOT_SPACE": _BYTES - _SPACE,
}
_ATOMS = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "BRANCH", "SUBPATTERN"})
_ANCHORS = {"AT_BEGINNING": "^", "AT_BEGINNING_STRING": "^", "AT_END": "$", "AT_END_STRING": "$"}


def is_plain(path: str) -> bool:
    """Return whether `path` can be sent in only one form."""
    return _PLAIN.issuperset(path.encode())


def literal(path: str) -> str:
    """Return an RE2 expression that matches every escaped form of `path`, and nothing else."""
    return "".join(_one_of(frozenset(character.encode())) for character in path)


@lru_cache(1024)
def expression(text: str) -> str:
    """Convert an expression for the decoded path to an expression for the path as sent.

    `text` must have passed `check_regex`.
    """
    from re import _parser  # type: ignore[attr-defined]

    translated = _sequence(_parser.parse(text))
    return translated if "%" in translated else text


# ── The parts of an expression ───────────────────────────────────────────────────────────────────────────────────────


def _sequence(parsed: Iterable[Any]) -> str:
    return "".join(_PARTS[str(operation)](argument) for operation, argument in parsed)


def _branch(argument: Any) -> str:
    return f"(?:{'|'.join(map(_sequence, argument[1]))})"


def _group(argument: Any) -> str:
    return f"(?:{_sequence(argument[-1])})"


def _repeat(argument: Any, lazy: str = "") -> str:
    low, high, inner = argument
    maximum = "" if str(high) == "MAXREPEAT" else str(high)
    quantifier = {("0", ""): "*", ("1", ""): "+", ("0", "1"): "?"}.get((str(low), maximum), f"{{{low},{maximum}}}")
    return f"{_atom(inner)}{quantifier}{lazy}"


def _atom(parsed: Sequence[Any]) -> str:
    """Return the expression in a form to which a repetition operator can be added."""
    translated = _sequence(parsed)
    return translated if len(parsed) == 1 and str(parsed[0][0]) in _ATOMS else f"(?:{translated})"


def _class(items: Iterable[Any]) -> str:
    members: frozenset[int] = frozenset()
    negated = False
    for operation, argument in items:
        match str(operation):
            case "NEGATE":
                negated = True
            case "LITERAL":
                members |= {argument}
            case "RANGE":
                members |= frozenset(range(argument[0], argument[1] + 1))
            case _:
                members |= _CATEGORIES[str(argument)]
    return _one_of(_BYTES - members if negated else members)


_PARTS: dict[str, Callable[[Any], str]] = {
    "LITERAL": lambda code: _one_of(frozenset((code,))),
    "NOT_LITERAL": lambda code: _one_of(_BYTES - {code}),
    "ANY": lambda _: _one_of(_BYTES),
    "IN": _class,
    "BRANCH": _branch,
    "SUBPATTERN": _group,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": lambda argument: _repeat(argument, "?"),
    "AT": lambda place: _ANCHORS[str(place)],
}


# ── One byte of a set ────────────────────────────────────────────────────────────────────────────────────────────────


def _one_of(members: frozenset[int]) -> str:
    """Return an expression that matches any byte in the set, literally or escaped.

    For an empty set, it matches nothing.
    """
    unescaped = _bracketed(byte for byte in members if 0x20 < byte < 0x7F and byte != ord("%"))
    alternatives = [unescaped, *_escaped(members)] if unescaped else list(_escaped(members))
    if not alternatives:
        return "[^\\x00-\\x{10FFFF}]"
    return unescaped if alternatives == [unescaped] else f"(?:{'|'.join(alternatives)})"


def _escaped(members: frozenset[int]) -> Iterable[str]:
    """Yield expressions such as `%3[Aa]` for the escaped bytes.

    Bytes that are never escaped may be included if that makes an expression shorter.
    """
    needed, allowed = members - _PLAIN, members | _PLAIN
    rows: dict[frozenset[int], set[int]] = {}
    for high in sorted({byte >> 4 for byte in needed}):
        lows = frozenset(range(16))
        if any(high << 4 | low not in allowed for low in lows):
            lows = frozenset(byte & 15 for byte in needed if byte >> 4 == high)
        rows.setdefault(lows, set()).add(high)
    for lows, highs in rows.items():
        yield f"%{_digit(highs)}{_digit(lows)}"


def _digit(values: Iterable[int]) -> str:
    return _bracketed(ord(digit) for value in values for digit in {f"{value:X}", f"{value:x}"})


def _bracketed(codes: Iterable[int]) -> str:
    """Return the shortest expression for any of these printable characters, or an empty string if there are none."""
    runs: list[list[int]] = []
    for code in sorted(codes):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    if not runs:
        return ""
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return _quoted(runs[0][0])
    return f"[{''.join(_run(*run) for run in runs)}]"


def _run(first: int, last: int) -> str:
    return _quoted(first) if first == last else f"{_quoted(first)}{'-' if last > first + 1 else ''}{_quoted(last)}"


def _quoted(code: int) -> str:
    character = chr(code)
    return character if re.match(r"[A-Za-z0-9_/%]", character) else f"\\{character}"

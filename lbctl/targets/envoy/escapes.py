"""A path's conditions as Envoy must ask them: it compares the path as it was sent, where other proxies decode it first.

Envoy has decoded slashes, and paths with malformed escapes or with escaped letters and digits are refused
(`request_target`). Every other byte may be written as itself or as `%XX`, in upper or lower case, and means the same to
the server behind: an expression here admits both, and `%` always begins an escape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/")
"""Bytes that stand as themselves alone."""
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
_PLACES = {"AT_BEGINNING": "^", "AT_BEGINNING_STRING": "^", "AT_END": "$", "AT_END_STRING": "$"}


def is_plain(path: str) -> bool:
    """Whether `path` can be written in one way alone."""
    return _PLAIN.issuperset(path.encode())


def literal(path: str) -> str:
    """An RE2 expression that matches `path` however it is escaped, and nothing else."""
    return "".join(_one(frozenset(character.encode())) for character in path)


@lru_cache(1024)
def expression(text: str) -> str:
    """`text`, which is meant for the decoded path, for the path as it is sent. One of `check_regex`'s."""
    from re import _parser  # type: ignore[attr-defined]

    found = _sequence(_parser.parse(text))
    return found if "%" in found else text


# ── The parts of an expression ───────────────────────────────────────────────────────────────────────────────────────


def _sequence(parsed: Iterable[Any]) -> str:
    return "".join(_PARTS[str(operation)](argument) for operation, argument in parsed)


def _branch(argument: Any) -> str:
    return f"(?:{'|'.join(map(_sequence, argument[1]))})"


def _group(argument: Any) -> str:
    return f"(?:{_sequence(argument[-1])})"


def _repeat(argument: Any, lazy: str = "") -> str:
    low, high, inner = argument
    most = "" if str(high) == "MAXREPEAT" else str(high)
    times = {("0", ""): "*", ("1", ""): "+", ("0", "1"): "?"}.get((str(low), most), f"{{{low},{most}}}")
    return f"{_atom(inner)}{times}{lazy}"


def _atom(parsed: Sequence[Any]) -> str:
    """What a repeat may stand behind."""
    written = _sequence(parsed)
    return written if len(parsed) == 1 and str(parsed[0][0]) in _ATOMS else f"(?:{written})"


def _class(items: Iterable[Any]) -> str:
    found: frozenset[int] = frozenset()
    negated = False
    for operation, argument in items:
        match str(operation):
            case "NEGATE":
                negated = True
            case "LITERAL":
                found |= {argument}
            case "RANGE":
                found |= frozenset(range(argument[0], argument[1] + 1))
            case _:
                found |= _CATEGORIES[str(argument)]
    return _one(_BYTES - found if negated else found)


_PARTS: dict[str, Callable[[Any], str]] = {
    "LITERAL": lambda code: _one(frozenset((code,))),
    "NOT_LITERAL": lambda code: _one(_BYTES - {code}),
    "ANY": lambda _: _one(_BYTES),
    "IN": _class,
    "BRANCH": _branch,
    "SUBPATTERN": _group,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": lambda argument: _repeat(argument, "?"),
    "AT": lambda place: _PLACES[str(place)],
}


# ── One byte of a set ────────────────────────────────────────────────────────────────────────────────────────────────


def _one(wanted: frozenset[int]) -> str:
    """One byte of `wanted`, as itself or escaped. Nothing matches the empty set."""
    itself = _bracketed(byte for byte in wanted if 0x20 < byte < 0x7F and byte != ord("%"))
    ways = [itself, *_escaped(wanted)] if itself else list(_escaped(wanted))
    return ways[0] if len(ways) == 1 and itself else f"(?:{'|'.join(ways)})" if ways else "[^\\x00-\\x{10FFFF}]"


def _escaped(wanted: frozenset[int]) -> Iterable[str]:
    """`%3[Aa]` and so on; what is never escaped may stand in it where that makes it shorter."""
    needed, allowed = wanted - _PLAIN, wanted | _PLAIN
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
    """The shortest way to say one of these printable characters; "" for none."""
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

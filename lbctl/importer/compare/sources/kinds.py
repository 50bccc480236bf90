"""Checks the arguments of a directive against the kinds in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Is = Callable[[str, str], bool]
"""Returns whether a value is of a certain kind."""

_MAX_VALUES = 64
"""Maximum number of values that can precede others. Each of them is one recursion step."""


def accepts(specification: str, values: Sequence[str], is_kind: Is) -> bool:
    """Return whether the values match the kinds in the specification: `kind`, `kind?`, `kind+` or `kind*`.

    `=a|b` means one of these words.
    """
    return _accepts(specification.split(), list(values), is_kind)


def _accepts(kinds: Sequence[str], values: Sequence[str], is_kind: Is) -> bool:
    if not kinds:
        return not values
    kind, count = (kinds[0][:-1], kinds[0][-1]) if kinds[0][-1] in "?+*" else (kinds[0], "")
    if count in {"+", "*"} and len(kinds) == 1:
        return len(values) >= (count == "+") and all(_is(kind, value, is_kind) for value in values)
    if len(values) > _MAX_VALUES:
        return False
    if count in {"?", "*"} and _accepts(kinds[1:], values, is_kind):
        return True
    if not values or not _is(kind, values[0], is_kind):
        return False
    rest = [f"{kind}*", *kinds[1:]] if count in {"+", "*"} else kinds[1:]
    return _accepts(rest, values[1:], is_kind)


def first_refused(specifications: Iterable[str], values: Sequence[str], is_kind: Is) -> str:
    """Return the first value that does not match any kind, or an empty string if the number of values is wrong."""
    wanted = {kind.rstrip("?+*") for each in specifications for kind in each.split()}
    return next((value for value in values if not any(_is(kind, value, is_kind) for kind in wanted)), "")


def _is(kind: str, value: str, is_kind: Is) -> bool:
    return value in kind[1:].split("|") if kind.startswith("=") else is_kind(kind, value)


def has_control(text: str) -> bool:
    """Return whether a string contains a control character other than a tab or a line break."""
    return any((character < " " and character not in "\t\r\n") or character == "\x7f" for character in text)


def words(*lines: str) -> frozenset[str]:
    """Return the words of the lines."""
    return frozenset(word for line in lines for word in line.split())

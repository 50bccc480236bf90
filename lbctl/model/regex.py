"""Checks that a regular expression has the same meaning in RE2 (Envoy) and PCRE (nginx, HAProxy).

The expression is analysed with Python's own parser. Only the constructs listed below are allowed, so that lookarounds,
backreferences, possessive quantifiers, atomic groups, inline flags and Unicode classes never reach a proxy. Word
boundaries are rejected because they match differently in an escaped path. Expressions that are too large for RE2 are
also rejected.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

_ALLOWED = {
    "LITERAL", "NOT_LITERAL", "ANY", "IN", "RANGE", "NEGATE", "CATEGORY", "BRANCH", "SUBPATTERN", "MAX_REPEAT",
    "MIN_REPEAT", "AT",
}  # fmt: skip
_MAX_REPEATS = 1000
"""RE2's limit, which also applies to the product of nested repetitions."""
_MAX_CHARACTERS = 10_000
"""Maximum number of characters with all repetitions expanded.

RE2 may need thirty instructions per character and allows about 350,000.
"""
_ESCAPED = r"(?<!\\)(?:\\\\)*"
_REFUSED = (
    (rf"{_ESCAPED}\(\?(?!:)", "look-around, flags and group names are not allowed"),
    (rf"{_ESCAPED}\\[0-9]", "back-references and octal escapes are not allowed"),
    (rf"{_ESCAPED}\\[ZGKRXCpPuUxvN]", "this escape has different meanings in different proxies"),
    (rf"{_ESCAPED}\{{,", "a repetition needs a lower bound"),
    (rf"{_ESCAPED}\[[^\]]*\\b", "\\b within a character class is not RE2 syntax"),
)


def check_regex(text: str) -> str:
    """Return the problem with the expression, or an empty string."""
    if not re.fullmatch(r"[!-~]{1,1024}", text):
        return "an expression must consist of 1 to 1024 printable ASCII characters, without spaces"
    for pattern, problem in _REFUSED:
        if re.search(pattern, text):
            return problem
    try:
        from re import _parser  # type: ignore[attr-defined]

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = _parser.parse(text)
            re.compile(text)
    except FutureWarning:
        return "[ and && within a character class must be escaped"
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a regular expression: {error}"
    too_large = f"with all repetitions expanded, it has more than {_MAX_CHARACTERS} characters"
    return next(_problems(parsed), "") or (too_large if _size(parsed) > _MAX_CHARACTERS else "")


def _problems(parsed: Iterable[Any], repeats: int = 1) -> Iterator[str]:
    """Yield the parsed expression's problems; `repeats` is the product of the surrounding repetitions."""
    for operation, argument in parsed:
        name = str(operation)
        if name not in _ALLOWED:
            yield f"{name.lower().replace('_', ' ')} is not RE2 syntax"
        if name == "AT" and str(argument).endswith("BOUNDARY"):
            yield "\\b and \\B have different meanings in different proxies if the path is escaped"
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            low, high, inner = argument
            product = repeats * max(1, low if str(high) == "MAXREPEAT" else high)
            if product > _MAX_REPEATS:
                yield f"more than {_MAX_REPEATS} repetitions"
            yield from _problems(inner, product)
        elif name == "SUBPATTERN":
            yield from _problems(argument[-1], repeats)
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from _problems(branch, repeats)


def _size(parsed: Iterable[Any]) -> int:
    """Return the number of characters and classes, with all repetitions expanded."""
    return sum(_size_of(str(operation), argument) for operation, argument in parsed)


def _size_of(name: str, argument: Any) -> int:
    if name in {"MAX_REPEAT", "MIN_REPEAT"}:
        low, high, inner = argument
        return _size(inner) * max(1, int(low if str(high) == "MAXREPEAT" else high))
    if name == "SUBPATTERN":
        return _size(argument[-1])
    if name == "BRANCH":
        return sum(map(_size, argument[1]))
    return len(argument) if name == "IN" else 1

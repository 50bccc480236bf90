"""Regular expressions that mean the same to RE2 (Envoy) and PCRE (nginx, HAProxy): RE2's syntax less what differs.

Python's own parser takes the expression apart; only constructs on the list below are let through, so look-around,
back-references, possessive and atomic groups, inline flags and unicode classes never reach a proxy. Nor do borders of
words, which are elsewhere in a path that is escaped, nor what RE2 would find too large to compile.
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
_MOST_REPEATS = 1000
"""RE2 refuses more, also as the product of nested ones."""
_MOST_CHARACTERS = 10_000
"""With all repeats written out. Each may take RE2 some thirty instructions, and it has room for some 350,000."""
_ESCAPED = r"(?<!\\)(?:\\\\)*"
_REFUSED = (
    (rf"{_ESCAPED}\(\?(?!:)", "look-around, flags and names of groups are not allowed"),
    (rf"{_ESCAPED}\\[0-9]", "back-references and octal escapes are not allowed"),
    (rf"{_ESCAPED}\\[ZGKRXCpPuUxvN]", "this escape does not mean the same to every proxy"),
    (rf"{_ESCAPED}\{{,", "a repeat needs its lower bound"),
    (rf"{_ESCAPED}\[[^\]]*\\b", "\\b within a class is not RE2 syntax"),
)


def check_regex(text: str) -> str:
    """What is wrong with it, in words, or the empty string."""
    if not re.fullmatch(r"[!-~]{1,1024}", text):
        return "an expression is 1 to 1024 printable ASCII characters without spaces"
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
        return "[ and && within a class must be escaped"
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a regular expression: {error}"
    large = f"with its repeats written out it has more than {_MOST_CHARACTERS} characters"
    return next(_problems(parsed), "") or (large if _size(parsed) > _MOST_CHARACTERS else "")


def _problems(parsed: Iterable[Any], repeats: int = 1) -> Iterator[str]:
    """`repeats`: how often what stands here is repeated by what it stands in."""
    for operation, argument in parsed:
        name = str(operation)
        if name not in _ALLOWED:
            yield f"{name.lower().replace('_', ' ')} is not RE2 syntax"
        if name == "AT" and str(argument).endswith("BOUNDARY"):
            yield "\\b and \\B do not mean the same to every proxy in a path that is escaped"
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            low, high, inner = argument
            times = repeats * max(1, low if str(high) == "MAXREPEAT" else high)
            if times > _MOST_REPEATS:
                yield f"more than {_MOST_REPEATS} repeats"
            yield from _problems(inner, times)
        elif name == "SUBPATTERN":
            yield from _problems(argument[-1], repeats)
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from _problems(branch, repeats)


def _size(parsed: Iterable[Any]) -> int:
    """Characters and classes, by their parts, with all repeats written out."""
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

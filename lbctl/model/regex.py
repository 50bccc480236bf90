"""Regular expressions that mean the same to RE2 (Envoy) and PCRE (nginx, HAProxy): RE2's syntax less what differs.

Python's own parser takes the expression apart; only constructs on the list below are let through, so look-around,
back-references, possessive and atomic groups, inline flags and unicode classes never reach a proxy.
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
    return next(_problems(parsed), "")


def _problems(parsed: Iterable[Any], repeats: int = 1) -> Iterator[str]:
    """`repeats`: how often what stands here is repeated by what it stands in."""
    for operation, argument in parsed:
        name = str(operation)
        if name not in _ALLOWED:
            yield f"{name.lower().replace('_', ' ')} is not RE2 syntax"
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

"""Values of the headers that a route sets: text with variables, which are words in braces such as `{client_ip}`.

Any other brace is literal, so that a value can contain JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Variable = Literal["client_ip", "request_id", "tenant", "host", "listener", "route", "pool"]
VARIABLES: tuple[Variable, ...] = get_args(Variable)
"""Variables, without braces."""
_WORD = re.compile(r"\{\s*([A-Za-z0-9_.-]+)\s*\}")


@dataclass(frozen=True, slots=True)
class HeaderPart:
    """A part of a value, which is either literal text or a variable."""

    text: str
    """Literal text, or an empty string for a variable."""
    variable: Variable | None = None
    """Variable, or None for literal text."""


def parts(value: str) -> Iterator[HeaderPart]:
    """Yield a value's literal text and variables in their order."""
    end = 0
    for match in _WORD.finditer(value):
        variable = next((item for item in VARIABLES if match.group() == f"{{{item}}}"), None)
        if variable is None:
            continue
        if match.start() > end:
            yield HeaderPart(value[end : match.start()])
        yield HeaderPart("", variable)
        end = match.end()
    if end < len(value):
        yield HeaderPart(value[end:])


def variables(value: str) -> frozenset[Variable]:
    """Return the variables of a value."""
    return frozenset(part.variable for part in parts(value) if part.variable is not None)


def unknown_words(value: str) -> list[str]:
    """Return the words in braces that are not variables, with their braces."""
    return [match.group() for match in _WORD.finditer(value) if match.group() not in _SPELLINGS]


def may_be_empty(value: str) -> bool:
    """Return whether a value can be empty because it consists only of the tenant, which is not always known."""
    return all(part.variable == "tenant" for part in parts(value))


_SPELLINGS = frozenset(f"{{{item}}}" for item in VARIABLES)

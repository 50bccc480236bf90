"""Formats URLs for display. The user, password and query values may be secrets, so they are replaced."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

_AUTHORITY = re.compile(r"(//)([^\s/?#'\"]*@|(?!\[)[^\s/?#'\"@]*:(?!\d+[/?#])[^\s'\"@]*@)")
"""Matches everything up to the last `@` in the authority. A password may contain an unescaped slash."""
_QUERY = re.compile(r"\?([^#]*)(#.*)?")
_VALUE = re.compile(r"(^|[&;])([^=&;]*=)?([^&;]+)")


def without_user(text: str) -> str:
    """Replace the user and password in each URL in a string.

    For example, `redis://ann:secret@host` → `redis://…@host`.
    """
    return _AUTHORITY.sub(r"\1…@", text) if "@" in text else text


def without_values(url: str) -> str:
    """Replace the user, password and query values. For example, `?token=abc&x` → `?token=…&…`.

    The fragment is dropped, because it is never sent.
    """
    return _replaced(without_user(url), lambda _: "…")


def with_digests(url: str) -> str:
    """Replace the user and password, and replace each query value with a digest to keep different values distinct."""
    return _replaced(without_user(url), digest)


def digest(value: str) -> str:
    """Return eight hexadecimal digits of the value's hash, in brackets, so that values can be distinguished."""
    return f"[{hashlib.sha256(value.encode()).hexdigest()[:8]}]"


def _replaced(url: str, instead: Callable[[str], str]) -> str:
    def query(match: re.Match[str]) -> str:
        return "?" + _VALUE.sub(lambda part: f"{part[1]}{part[2] or ''}{instead(part[3])}", match[1])

    return _QUERY.sub(query, url, count=1)

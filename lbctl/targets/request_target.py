"""Which request targets are ambiguous: servers may read them as two paths, or take one path for another.

A proxy that decodes a path to choose a route and forwards the path as written must not accept such a target: the
replica could read a path of another, protected route. All three proxies refuse them with 400, by the expressions below,
and forward every other target. The expressions mean the same to PCRE (nginx, HAProxy), RE2 (Envoy) and Python.

Ambiguous are empty segments and dot segments (also with escaped slashes and dots, and with path parameters, `..;x`),
backslashes, NUL, malformed escapes, escaped letters and digits, raw control characters and bytes beyond ASCII, and
fragments.
"""

from __future__ import annotations

import re

_SLASH = "(?:/|%2[Ff])"
_DOT = r"(?:\.|%2[Ee])"
_SEMICOLON = "(?:;|%3[Bb])"
_HEX = "[0-9A-Fa-f]"
_PARTS = (
    f"{_SLASH}{_SLASH}",
    f"{_SLASH}{_DOT}{_DOT}?(?:{_SLASH}|{_SEMICOLON}|$)",
    r"\\|%5[Cc]",
    "%00",
    f"%(?:[^0-9A-Fa-f]|{_HEX}[^0-9A-Fa-f]|{_HEX}?$)",
    "%(?:3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa])",
    "[^!-~]|#",
)
AMBIGUOUS = "|".join(_PARTS)
"""An expression that matches in an ambiguous path: the part of a request line's target before the first `?`."""
MESSAGE = "the path is ambiguous"
_AMBIGUOUS = re.compile(AMBIGUOUS.replace("$", r"\Z"))


def is_ambiguous(path: str) -> bool:
    """Return whether the proxies refuse `path`, which is written as in a request line and has no query."""
    return _AMBIGUOUS.search(path) is not None

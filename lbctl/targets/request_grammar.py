"""The hosts, paths and methods that every proxy rejects, and the expressions for them.

The expressions mean the same to PCRE (nginx, HAProxy), RE2 (Envoy) and Python.

Host (or `:authority`) is one name or IP address, and a port. A request without a host is rejected. Servers differ in
the host that they read from `h, other`, `u@h`, `h/x`, `[::1].h` or two lines, so the host by which the proxy chose a
route and the host that the replica reads could differ.

A path is ambiguous if servers may read it as two paths, or take one path for another. A proxy that decodes a path to
choose a route and forwards the path as written must not accept it: the replica could read a path of another, protected
route. All three proxies reject such targets with 400 and forward every other one. Ambiguous are empty segments and dot
segments (also with escaped slashes and dots, and with path parameters, `..;x`), backslashes, NUL, and malformed
escapes. So are escaped letters and digits, raw control characters and bytes beyond ASCII, and fragments.

Methods are rejected with 405, or with 400 if the proxy's parser rejects them first. The response to TRACE repeats the
request as it arrives, including credentials that the proxy has added; CONNECT opens a tunnel. Methods are compared as
written, but many servers treat `get` as `GET`: such a request would bypass a rule for `GET`.
"""

from __future__ import annotations

import re

_LABEL = "[A-Za-z0-9_-]+"
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ADDRESS = r"\[[0-9A-Fa-f:.]+\]"
HOST = rf"(?:{_NAME}\.?|{_ADDRESS})(?::{_PORT})?"
"""Expression for the whole value of Host."""
HOST_WITHOUT_DOT = f"(?:{_NAME}|{_ADDRESS})(?::{_PORT})?"
"""The same for a proxy that has already removed one final dot, as Envoy does; no further dot is accepted."""
HOST_MESSAGE = "the host is missing or malformed"
_HOST = re.compile(HOST)


def is_host(text: str) -> bool:
    """Return whether the proxies accept `text` as the value of the only Host line."""
    return _HOST.fullmatch(text) is not None


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
"""Expression that matches in an ambiguous path: the part of a request line's target before the first `?`."""
TARGET_MESSAGE = "the path is ambiguous"
_AMBIGUOUS = re.compile(AMBIGUOUS.replace("$", r"\Z"))


def is_ambiguous(path: str) -> bool:
    """Return whether the proxies reject `path`, which is written as in a request line and has no query."""
    return _AMBIGUOUS.search(path) is not None


REFUSED_METHODS = ("CONNECT", "TRACE")
UNFIT_METHOD = "[^A-Z_-]"
"""Expression that matches a method with characters other than capitals, `-` and `_`."""
METHOD_MESSAGE = "this method is not allowed"


def is_refused_method(method: str) -> bool:
    """Return whether every proxy rejects `method`."""
    return method in REFUSED_METHODS or re.search(UNFIT_METHOD, method) is not None

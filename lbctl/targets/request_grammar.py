"""The hosts, paths and methods that every proxy rejects, and expressions that match them.

The expressions have the same meaning in PCRE (nginx, HAProxy), RE2 (Envoy) and Python.

Host (or `:authority`) is a single name or IP address, optionally with a port. A request without a host is rejected.
Servers disagree about the host in `h, other`, `u@h`, `h/x`, `[::1].h` or two lines, so the proxy could choose a route
by one host while the replica reads another.

A path is ambiguous if servers may interpret it in two ways, or confuse two paths. A proxy that decodes a path to choose
a route, but forwards the path as written, must not accept it: the replica could read it as the path of another,
protected route. All three proxies reject such targets with 400 and forward all others. The ambiguous paths are: empty
segments and dot segments (also with escaped slashes and dots, and with path parameters, `..;x`), backslashes, NUL, and
malformed escapes. Escaped letters and digits, raw control characters, bytes beyond ASCII, and fragments are ambiguous
too.

Rejected methods get 405, or 400 if the proxy's parser rejects them first. The response to TRACE repeats the request as
received, including credentials that the proxy has added, and CONNECT opens a tunnel. Methods are compared as written,
but many servers treat `get` as `GET`, so such a request would bypass a rule for `GET`.
"""

from __future__ import annotations

import re

_LABEL = "[A-Za-z0-9_-]+"
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ADDRESS = r"\[[0-9A-Fa-f:.]+\]"
HOST = rf"(?:{_NAME}\.?|{_ADDRESS})(?::{_PORT})?"
"""Expression for the full value of Host."""
HOST_WITHOUT_DOT = f"(?:{_NAME}|{_ADDRESS})(?::{_PORT})?"
"""Expression for the full value of Host, for a proxy that has already removed a final dot, as Envoy does. A second dot
is not accepted."""
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
"""Expression that matches inside an ambiguous path, which is the request target up to the first `?`."""
TARGET_MESSAGE = "the path is ambiguous"
_AMBIGUOUS = re.compile(AMBIGUOUS.replace("$", r"\Z"))


def is_ambiguous(path: str) -> bool:
    """Return whether the proxies reject `path`, given as in a request line but without the query."""
    return _AMBIGUOUS.search(path) is not None


REFUSED_METHODS = ("CONNECT", "TRACE")
UNFIT_METHOD = "[^A-Z_-]"
"""Expression that matches methods with characters other than capitals, `-` and `_`."""
METHOD_MESSAGE = "this method is not allowed"


def is_refused_method(method: str) -> bool:
    """Return whether every proxy rejects `method`."""
    return method in REFUSED_METHODS or re.search(UNFIT_METHOD, method) is not None

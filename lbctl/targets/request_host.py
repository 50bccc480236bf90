"""What a Host (or `:authority`) may be: one name or IP address, and a port; a request without one is refused.

Servers differ in what they take for the host of `u@h`, `h/x`, `[::1].h`, `h, other` or two lines, so the proxy's host,
by which it chose a route, and the replica's could be two. The expression means the same to PCRE (nginx, HAProxy), RE2
(Envoy) and Python.
"""

from __future__ import annotations

import re

_LABEL = "[A-Za-z0-9_-]+"
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ADDRESS = r"\[[0-9A-Fa-f:.]+\]"
HOST = rf"(?:{_NAME}\.?|{_ADDRESS})(?::{_PORT})?"
"""An expression for the whole of a Host."""
HOST_WITHOUT_DOT = f"(?:{_NAME}|{_ADDRESS})(?::{_PORT})?"
"""The same after the proxy has removed the dot at the end, as Envoy does: another one is one too many."""
MESSAGE = "the host is missing or malformed"
_HOST = re.compile(HOST)


def is_host(text: str) -> bool:
    """Whether the proxies accept `text` as the value of the only Host line."""
    return _HOST.fullmatch(text) is not None

"""Which values of Host (or `:authority`) are accepted: one name or IP address, and a port.

A request without a host is refused. Servers differ in what they take for the host of `h, other`, `u@h`, `h/x`,
`[::1].h` or two lines, so the host by which the proxy chose a route and the host that the replica sees could differ.
The expression means the same to PCRE (nginx, HAProxy), RE2 (Envoy) and Python.
"""

from __future__ import annotations

import re

_LABEL = "[A-Za-z0-9_-]+"
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ADDRESS = r"\[[0-9A-Fa-f:.]+\]"
HOST = rf"(?:{_NAME}\.?|{_ADDRESS})(?::{_PORT})?"
"""An expression for the whole value of Host."""
HOST_WITHOUT_DOT = f"(?:{_NAME}|{_ADDRESS})(?::{_PORT})?"
"""The same for a proxy that has already removed one dot at the end, as Envoy does; no further dot is accepted."""
MESSAGE = "the host is missing or malformed"
_HOST = re.compile(HOST)


def is_host(text: str) -> bool:
    """Return whether the proxies accept `text` as the value of the only Host line."""
    return _HOST.fullmatch(text) is not None

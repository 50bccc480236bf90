"""Text as a string of Lua."""

from __future__ import annotations

import re

_PLAIN = re.compile("[A-Za-z0-9 ./:?=&%,_-]")


def string(value: str) -> str:
    """Return a string of Lua that means exactly `value`; other characters than plain ones are written as numbers."""
    written = (chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"\\{byte:03}" for byte in value.encode())
    return f'"{"".join(written)}"'

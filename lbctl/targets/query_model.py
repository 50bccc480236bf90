"""The model in the query of a GET, as in realtime sessions: `/v1/realtime?model=NAME`.

nginx and Envoy compare queries as they were sent, so an expression accepts each byte both literally and as `%XX`.
Clients never escape unreserved characters (RFC 3986), so such escapes are left as they are. HAProxy decodes the whole
query.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_NOT_AS_ITSELF = frozenset(" %&+#")
_ESCAPED_UNRESERVED = re.compile(r"%(2[DdEe]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|7[Ee])")
_NAMES_MODEL = re.compile(r"(?:^|[&;])\s*model\s*(?:[=\[&;]|$)", re.IGNORECASE)


def expression(text: str) -> str:
    """Return an expression (RE2 and PCRE) that matches every escaped form of a text in a query, and nothing else."""
    return "".join(map(_character, text))


def first(query: str, *, decoded: bool) -> str | None:
    """Return the first parameter `model`, or None. Without `decoded`, escapes of unreserved characters are kept."""
    for item in query.split("&"):
        name, equals, value = item.partition("=")
        if name == "model" and equals:
            return unquote_plus(value if decoded else _ESCAPED_UNRESERVED.sub(r"%25\1", value))
    return None


def may_name_model(query: str) -> bool:
    """Return whether some server may find a parameter `model` in the query, in any spelling."""
    return _NAMES_MODEL.search(unquote_plus(query)) is not None


def _character(character: str) -> str:
    if _UNRESERVED.fullmatch(character):
        return re.escape(character)
    escaped = "".join(f"%{_digit(byte >> 4)}{_digit(byte & 15)}" for byte in character.encode())
    if character == " ":
        return rf"(?:\+|{escaped})"
    return escaped if character in _NOT_AS_ITSELF else f"(?:{re.escape(character)}|{escaped})"


def _digit(value: int) -> str:
    return f"{value:X}" if value < 10 else f"[{value:X}{value:x}]"

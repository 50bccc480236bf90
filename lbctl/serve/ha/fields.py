"""Validates stored values about a member, which may have been written by other members or other clients of the store.

Every function returns the value, or raises FieldError with the field's name.
"""

from __future__ import annotations

import math
import re
from urllib.parse import urlsplit

from lbctl.base.hosts import address_of, is_metadata

MAX_MEMBERS = 100
"""Maximum number of members in a control plane; additional announcements are ignored."""
MAX_PROBLEM = 500
"""Maximum number of characters in a problem."""
_MAX_TEXT = 200
_MAX_NAME = 253
_MAX_ITEMS = 10_000
_MAX_EPOCH = 10**17
_MAX_TIME = 10**11
"""The latest valid time, in seconds since the epoch: a time in the year 5138, which still has four digits."""
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}|unix:/[!-~]{1,200}")


class FieldError(ValueError):
    """A value that a member would never write. The message names the field."""


def is_name(value: object) -> bool:
    """Return whether this is a valid member name."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


def name(field: str, value: object) -> str:
    """Return a member name."""
    if not isinstance(value, str) or not is_name(value):
        raise FieldError(f"{field} is not a valid member name")
    return value


def line(field: str, value: object, longest: int = _MAX_TEXT) -> str:
    """Return a string that can be displayed on a single line."""
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise FieldError(f"{field} is not a single line of at most {longest} characters")
    return value


def raw_text(field: str, value: object, longest: int) -> str:
    """Return a string that is never displayed."""
    if not isinstance(value, str) or len(value) > longest:
        raise FieldError(f"{field} is not text of at most {longest} characters")
    return value


def texts(field: str, value: object) -> tuple[str, ...]:
    """Return a list of lines."""
    if not isinstance(value, list) or len(value) > _MAX_ITEMS:
        raise FieldError(f"{field} is not a list of at most {_MAX_ITEMS} items")
    return tuple(line(field, item, MAX_PROBLEM) for item in value)


def flag(field: str, value: object) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise FieldError(f"{field} is not true or false")
    return value


def epoch(field: str, value: object) -> int:
    """Return an epoch."""
    if type(value) is not int or not 0 <= value <= _MAX_EPOCH:
        raise FieldError(f"{field} is not an epoch")
    return value


def number(field: str, value: object) -> float:
    """Return a number of seconds, which may be negative."""
    if type(value) not in (int, float) or not abs(value) <= _MAX_TIME:  # type: ignore[arg-type]
        raise FieldError(f"{field} is not a number of seconds")
    return float(value)  # type: ignore[arg-type]


def time(field: str, value: object) -> float:
    """Return a time, in seconds since the epoch."""
    seconds = number(field, value)
    if seconds < 0 or math.isnan(seconds):
        raise FieldError(f"{field} is not a time")
    return seconds


def number_or_none(field: str, value: object) -> float | None:
    """Return a number of seconds, or None."""
    return None if value is None else number(field, value)


def url(field: str, value: object) -> str:
    """Return an API URL without a path; empty if the API is closed."""
    written = line(field, value, 300)
    if not written:
        return ""
    scheme, separator, address = written.partition("://")
    if not separator or scheme not in ("http", "https") or not _is_address(address) or address.startswith("unix:"):
        raise FieldError(f"{field} is not an API URL")
    return written


def address(field: str, value: object) -> str:
    """Return an address in the form `HOST:PORT` or `unix:PATH`; empty if the endpoint is closed."""
    written = line(field, value, 300)
    if written and not _is_address(written):
        raise FieldError(f"{field} is not an address")
    return written


def _is_address(written: str) -> bool:
    if not _ADDRESS.fullmatch(written):
        return False
    if written.startswith("unix:"):
        return True
    host, port = urlsplit(f"//{written}").hostname or "", int(written.rpartition(":")[2])
    return 0 < port < 65536 and not is_metadata(host, address_of(host))

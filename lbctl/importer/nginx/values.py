"""Converts nginx times, sizes, addresses and header variables to fleet values."""

from __future__ import annotations

import re

from lbctl.importer.values import DAY, HOUR, MINUTE, SECOND, duration

_NUMBER = r"(\d{1,18})"
_TIME = re.compile(
    rf"(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m(?!s))?\s*(?:{_NUMBER}s?(?!\w))?\s*(?:{_NUMBER}ms)?"
)
_SIZE = re.compile(rf"{_NUMBER}([kKmMgG]?)")
_UNITS = {"": "B", "k": "KiB", "m": "MiB", "g": "GiB"}
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\s\[\]]+)(?::(?P<port>\d{1,5}))?")


def milliseconds(text: str) -> int | None:
    """Return an nginx time (`60`, `60s`, `1h30m`, `500ms`) in milliseconds, or None if it is invalid."""
    match = _TIME.fullmatch(text.strip())
    if not match or not any(match.groups()):
        return None
    factors = (DAY, HOUR, MINUTE, SECOND, 1)
    return sum(int(part) * factor for part, factor in zip(match.groups(), factors, strict=True) if part)


def time(text: str) -> str | None:
    """Return an nginx time as a fleet duration, or None."""
    value = milliseconds(text)
    return duration(value) if value is not None else None


def size(text: str) -> str | None:
    """Return an nginx size as a fleet size, or None if it is invalid."""
    match = _SIZE.fullmatch(text)
    return f"{int(match[1])}{_UNITS[match[2].lower()]}" if match else None


def bytes_of(text: str) -> int | None:
    """Return an nginx size in bytes, or None if it is invalid."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()] if match else None


def address(text: str, port: int = 80) -> str | None:
    """Return `host:port` or `unix:/path` in fleet-file form, with nginx's default port, or None if it is invalid."""
    if text.startswith("unix:"):
        return f"unix:{text[5:].removesuffix(':')}"
    match = _ADDRESS.fullmatch(text)
    return f"{match['host']}:{match['port'] or port}" if match else None


def header_of(variable: str) -> str | None:
    """Return the header name in an nginx variable such as `$http_x_user`."""
    match = re.fullmatch(r"\$\{?http_([a-z0-9_]+)\}?", variable)
    return match[1].replace("_", "-") if match else None


def cookie_of(variable: str) -> str | None:
    """Return the cookie name in an nginx variable."""
    match = re.fullmatch(r"\$\{?cookie_([A-Za-z0-9_]+)\}?", variable)
    return match[1] if match else None

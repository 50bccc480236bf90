"""Converts HAProxy times and addresses to fleet values."""

from __future__ import annotations

import re

from lbctl.importer.values import duration, is_whole

_TIME = re.compile(r"(\d{1,18})(us|ms|s|m|h|d)?")
_FACTORS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1}


def milliseconds(text: str) -> int | None:
    """Return an HAProxy time in milliseconds, which is the default unit, or None if it is invalid."""
    match = _TIME.fullmatch(text)
    return int(int(match[1]) * _FACTORS[match[2]]) if match else None


def time(text: str) -> str | None:
    """Return an HAProxy time as a fleet duration, or None."""
    value = milliseconds(text)
    return duration(value) if value else None


def binds(text: str) -> list[str | None]:
    """Return a `bind` line's addresses in fleet-file form, or None for each unsupported address."""
    return [_bind(item) for item in text.split(",")]


def _bind(text: str) -> str | None:
    text = re.sub(r"^(?:ipv4@|ipv6@|tcp@|tcp4@|tcp6@)", "", text)
    if text.startswith(("unix@", "/")):
        return f"unix:{text.removeprefix('unix@')}"
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not is_whole(port):
        return None
    if host in {"", "*"}:
        return f"0.0.0.0:{port}"
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host}:{port}" if re.fullmatch(r"[0-9.]+", host) else None


def server_address(text: str) -> str | None:
    """Return a `server` line's address.

    Without a port, HAProxy uses the client's port, which a fleet does not support.
    """
    text = re.sub(r"^(?:ipv4@|ipv6@|tcp@)", "", text)
    if text.startswith(("unix@", "/")):
        return f"unix:{text.removeprefix('unix@')}"
    host, _, port = text.rpartition(":")
    if not is_whole(port) or not host:
        return None
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

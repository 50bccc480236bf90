"""Builds Runtime API commands and validates every word in them.

A `;` or a line feed in a name would start a second command, which the API would also execute. Names in a fleet contain
neither, and this module enforces this before a command reaches the socket. Every function raises UnsafeError if a word
is not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from lbctl.base.hosts import is_ip
from lbctl.targets.haproxy import slots

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARGUMENT = re.compile(r"[A-Za-z0-9._:/@%()\[\]\"=,+*-]+")
_VARIABLE = re.compile(r"proc\.(?:most|least)_[0-9a-f]{12}")
_MAX_WEIGHT = 256


class UnsafeError(ValueError):
    """A word is not allowed in a Runtime API command."""


def weight(backend: str, server: str, value: int) -> str:
    """Return the command that sets a server's weight (0 to 256)."""
    if not 0 <= value <= _MAX_WEIGHT:
        raise UnsafeError(f"not a weight: {value!r}")
    return f"set server {_at(backend, server)} weight {int(value)}"


def state(backend: str, server: str, value: Literal["ready", "drain", "maint"]) -> str:
    """Return the command that sets a server's administrative state."""
    return f"set server {_at(backend, server)} state {value}"


def address(backend: str, server: str, host: str, port: int) -> str:
    """Return the command that moves a server to another IP and port."""
    return f"set server {_at(backend, server)} addr {_ip(host)} port {_port(port)}"


def add(backend: str, server: str, host: str, port: int, arguments: Sequence[str]) -> str:
    """Return the command that adds a server. The server starts in maintenance with its checks disabled."""
    ip = _ip(host)
    where = f"[{ip}]:{_port(port)}" if ":" in ip else f"{ip}:{_port(port)}"
    return " ".join((f"add server {_at(backend, server)} {where}", *map(_argument, arguments)))


def enable(backend: str, server: str, *, checked: bool) -> list[str]:
    """Return the commands that enable a server after `add`.

    If `checked` is true, the server gets no requests until its checks succeed, even though HAProxy assumes that new
    servers are up. A server can be marked as down only after it has been enabled, so its weight must be 0 until then.
    """
    at = _at(backend, server)
    return [f"enable health {at}", f"enable server {at}", *([down(backend, server)] if checked else [])]


def down(backend: str, server: str) -> str:
    """Return the command that marks a server as down until its checks succeed."""
    return f"set server {_at(backend, server)} health down"


def occupant(slot: str, replica: str) -> str:
    """Return the command that records which replica uses a slot.

    The slot's own name indicates that the slot is free.
    """
    for name in (slot, replica):
        if not _NAME.fullmatch(name):
            raise UnsafeError(f"not a name: {name!r}")
    return f"set map {slots.MAP} {slot} {replica}"


UNLOCK = "experimental-mode on"
"""HAProxy requires this command before `limit` on the same connection."""


def limit(variable: str, value: int) -> str:
    """Return the command that sets the variable of a request limit."""
    return f"set var {_variable(variable)} int({int(value)})"


def get_limit(variable: str) -> str:
    """Return the command that reads the variable of a request limit."""
    return f"get var {_variable(variable)}"


def delete(backend: str, server: str) -> str:
    """Return the command that deletes a server."""
    return f"del server {_at(backend, server)}"


def cut(backend: str, server: str) -> str:
    """Return the command that aborts every request on a server."""
    return f"shutdown sessions server {_at(backend, server)}"


def _at(backend: str, server: str) -> str:
    for name in (backend, server):
        if not _NAME.fullmatch(name):
            raise UnsafeError(f"not a name: {name!r}")
    return f"{backend}/{server}"


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise UnsafeError(f"not a variable: {name!r}")
    return name


def _argument(text: str) -> str:
    if not _ARGUMENT.fullmatch(text):
        raise UnsafeError(f"not a word of the Runtime API: {text!r}")
    return text


def _ip(host: str) -> str:
    if not is_ip(host):
        raise UnsafeError(f"not an IP address: {host!r}")
    return host


def _port(port: int) -> int:
    if not 0 < port < 65536:
        raise UnsafeError(f"not a port: {port!r}")
    return port

"""The commands of the Runtime API, each word looked at before it is one.

A `;` or a line feed in a name would begin a second command, and the API does all that it is told. Names of a fleet hold
nothing of the kind; this is the lock at the socket's side.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Literal

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORD = re.compile(r"[A-Za-z0-9._:/@%()\[\]\"=,+*-]+")
_VARIABLE = re.compile(r"proc\.most_[0-9a-f]{12}")
_MOST_WEIGHT = 256


class UnsafeError(ValueError):
    """A word that must not reach the socket."""


def weight(backend: str, server: str, value: int) -> str:
    if not 0 <= value <= _MOST_WEIGHT:
        raise UnsafeError(f"not a weight: {value!r}")
    return f"set server {_at(backend, server)} weight {int(value)}"


def state(backend: str, server: str, value: Literal["ready", "drain", "maint"]) -> str:
    return f"set server {_at(backend, server)} state {value}"


def address(backend: str, server: str, host: str, port: int) -> str:
    return f"set server {_at(backend, server)} addr {_ip(host)} port {_port(port)}"


def add(backend: str, server: str, host: str, port: int, words: Sequence[str]) -> str:
    """Made in maintenance, its checks asleep."""
    ip = _ip(host)
    where = f"[{ip}]:{_port(port)}" if ":" in ip else f"{ip}:{_port(port)}"
    return " ".join((f"add server {_at(backend, server)} {where}", *map(_word, words)))


def enable(backend: str, server: str, *, checked: bool) -> list[str]:
    """After `add`. `checked`: nothing goes there before its checks have found it fit, which HAProxy would else assume;
    that can be said only of a server that is already on, so it is on without weight until then."""
    at = _at(backend, server)
    return [f"enable health {at}", f"enable server {at}", *([f"set server {at} health down"] if checked else [])]


UNLOCK = "experimental-mode on"
"""Before `limit`, on the same connection: HAProxy wants it said."""


def limit(variable: str, value: int) -> str:
    return f"set var {_variable(variable)} int({int(value)})"


def ask_limit(variable: str) -> str:
    return f"get var {_variable(variable)}"


def delete(backend: str, server: str) -> str:
    return f"del server {_at(backend, server)}"


def cut(backend: str, server: str) -> str:
    """Ends every request there."""
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


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise UnsafeError(f"not a word of the Runtime API: {text!r}")
    return text


def _ip(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        raise UnsafeError(f"not an IP address: {host!r}") from None


def _port(port: int) -> int:
    if not 0 < port < 65536:
        raise UnsafeError(f"not a port: {port!r}")
    return port

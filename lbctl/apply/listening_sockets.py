"""Checks whether an address can be bound, and uses /proc to find which process or user listens on a TCP port.

Linux only.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from lbctl.ir.address import Address

_PROC = Path("/proc")
_LISTEN = "0A"
"""The state value for a listening socket in /proc/net/tcp."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def bind_error(place: Address, kind: socket.SocketKind = socket.SOCK_STREAM) -> OSError | None:
    """Return the error that occurs when binding the address, or None if it can be bound.

    This function does not listen on the address.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        with socket.socket(family, kind) as probe:
            if kind is socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((place.host, place.port))
    except OSError as error:
        return error
    return None


def listening_sockets(port: int) -> set[str] | None:
    """Return the inode numbers of the sockets that listen on the port at any address, or None if unknown."""
    rows = _listening(port)
    return None if rows is None else {inode for _, inode, _ in rows}


def listening_users(host: str, port: int) -> dict[str, int] | None:
    """Map the inode number of each socket that accepts connections at an IP address to its user's ID.

    Return None if the sockets cannot be determined.
    """
    rows, accepted = _listening(port), _accepting(host)
    return None if rows is None else {inode: user for address, inode, user in rows if address in accepted}


def owner(sockets: Collection[str]) -> int | None:
    """Return the ID of a process that has one of these sockets open, or None if none is visible to this user."""
    return next((pid for pid in _processes() if _holds(pid, sockets)), None) if sockets else None


def session_listens(session: int, port: int) -> bool:
    """Return whether a process in the session listens on the port, or True if the system hides the process.

    The system hides programs with file capabilities, such as the capability to bind ports below 1024.
    """
    sockets = listening_sockets(port)
    if not sockets:
        return sockets is None
    return any(_holds(pid, sockets) in (True, None) for pid in _processes() if _session(pid) == session)


def _listening(port: int) -> list[tuple[bytes, str, int]] | None:
    """Return the address, inode number and user ID of each socket that listens on the port; None if unknown."""
    tables = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            tables.append((_PROC / "net" / name).read_text(encoding="ascii"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:] if f":{port:04X} " in line]
    found = []
    for row in rows:
        address, _, local_port = row[1].partition(":")
        if row[3] == _LISTEN and int(local_port, 16) == port:
            found.append((_packed(address), row[9], int(row[7])))
    return found if tables else None


def _packed(text: str) -> bytes:
    """Decode an address from a table in /proc/net, which contains 32-bit words in the machine's byte order."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)


def _accepting(host: str) -> frozenset[bytes]:
    """Return the bind addresses at which a socket accepts connections to this address."""
    if ":" in host:
        return frozenset({socket.inet_pton(socket.AF_INET6, host), bytes(16)})
    packed = socket.inet_pton(socket.AF_INET, host)
    return frozenset(
        {packed, bytes(4), bytes(16), bytes(10) + b"\xff\xff" + packed, bytes(10) + b"\xff\xff" + bytes(4)}
    )


def _processes() -> Iterator[int]:
    entries = _PROC.iterdir() if _PROC.is_dir() else ()
    return (int(entry.name) for entry in entries if entry.name.isdigit())


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _holds(pid: int, sockets: Collection[str]) -> bool | None:
    """Return whether the process has one of these sockets open, or None if this user is not allowed to inspect it."""
    try:
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                match = _SOCKET.fullmatch(str(descriptor.readlink()))
                if match and match[1] in sockets:
                    return True
    except PermissionError:
        return None
    except OSError:  # it has exited
        pass
    return False

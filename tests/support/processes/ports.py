"""Free ports that are reserved while a test needs them, and the processes that listen on ports. Linux only."""

from __future__ import annotations

import itertools
import random
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve

HOST = LOOPBACK
_LISTEN, _ESTABLISHED, _CLOSE_WAIT = "0A", "01", "08"
_CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 20_000
_held: list[socket.socket] = []


def free_port() -> int:
    """Return a free TCP port on loopback, reserved for this process until `release`."""
    held = reserve()
    _held.append(held)
    return port_of(held)


def free_pair() -> int:
    """Return the first of two consecutive TCP ports on loopback, both reserved until `release`.

    A picker also uses the second port for UDP, which is not reserved. Therefore the system must not assign the ports to
    clients: nginx, for example, opens a UDP socket for each log.
    """
    first_of_clients = int(_CLIENT_PORTS.read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(_FIRST_PORT, first_of_clients - 1)
        with suppress(OSError):
            hold(port, port + 1)
            return port


def hold(*ports: int) -> None:
    """Reserve these too. Raises OSError, and reserves none, if another process uses one."""
    held: list[socket.socket] = []
    try:
        for port in ports:
            with socket.socket() as alone:
                alone.bind((HOST, port))
            held.append(reserve(port))
    except OSError:
        for held_socket in held:
            held_socket.close()
        raise
    _held.extend(held)


def release() -> None:
    """Release the ports from `free_port` and `hold`."""
    while _held:
        _held.pop().close()


def listening(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on `port`, on any address."""
    listeners = (row for rows in _sockets_of_tcp() for row in itertools.takewhile(lambda row: row[3] == _LISTEN, rows))
    return {row[9] for row in listeners if _port(row[1]) == port}


def has_clients(port: int) -> bool:
    """Return whether a connection to `port` is open, or closed only by its server."""
    connections = (row for rows in _sockets_of_tcp() for row in rows)
    return any(row[3] in (_ESTABLISHED, _CLOSE_WAIT) and _port(row[2]) == port for row in connections)


def has_read(port: int, client: int) -> bool:
    """Return whether the process that listens on `port` has read everything that the client on the port `client` has
    sent."""
    connections = (row for rows in _sockets_of_tcp() for row in rows)
    ours = [row for row in connections if (_port(row[1]), _port(row[2])) == (port, client)]
    return bool(ours) and all(row[4].endswith(":00000000") for row in ours)


def _sockets_of_tcp() -> Iterator[Iterator[list[str]]]:
    """Yield the rows for TCP and for TCP over IPv6, read one by one: first the sockets that listen, then thousands of
    connections that are already closed."""
    for name in ("tcp", "tcp6"):
        with Path("/proc/net", name).open(encoding="ascii") as table:
            next(table)
            yield (row.split() for row in table)


def _port(address: str) -> int:
    return int(address.rsplit(":", 1)[1], 16)


def listens(pid: int, port: int) -> bool:
    """Return whether the process has a socket that listens on `port`; False if the process has ended."""
    return bool(listening(port) & _sockets(pid))


def _sockets(pid: int) -> set[str]:
    inodes = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            socket_link = re.fullmatch(r"socket:\[(\d+)\]", _link(descriptor))
            if socket_link:
                inodes.add(socket_link[1])
    except OSError:  # it has ended
        return set()
    return inodes


def _link(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # closed since the directory was read
        return ""


def await_listeners(ports: Iterable[int], timeout: float = 60.0) -> list[int]:
    """Wait until a process listens on every port. Return the ports without a listener after `timeout` seconds."""
    missing = list(ports)
    deadline = time.monotonic() + timeout
    while missing and time.monotonic() < deadline:
        missing = [port for port in missing if not listening(port)]
        time.sleep(0.02 if missing else 0)
    return missing

"""Reserves ports for servers that are started later.

A port that was bound and released can be given to another process, or to an outgoing connection, before the server
binds it; two HAProxies then even share it, since both set SO_REUSEPORT. So the socket stays bound without listening:
connections are refused, the system does not give the port to other processes, and a server that sets SO_REUSEADDR may
listen there. nginx, HAProxy, Envoy and Python's servers do. Linux only.
"""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def reserve(port: int = 0, host: str = LOOPBACK, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket bound to the port (0: any that is free); closing it ends the reservation.

    Raises OSError if a socket without SO_REUSEPORT has the port.
    """
    bound = socket.socket(socket.AF_INET, kind)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def port_of(bound: socket.socket) -> int:
    """Return the port that the socket is bound to."""
    port: int = bound.getsockname()[1]
    return port

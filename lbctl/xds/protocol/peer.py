"""The address of a call's client."""

from __future__ import annotations

from urllib.parse import unquote

import grpc

from lbctl.base.hosts import normal_host
from lbctl.xds.protocol.connection import Client

Context = grpc.aio.ServicerContext[object, bytes]
UNIX = "unix:"
"""Prefix of the peer string for a Unix socket."""


def peer_of(context: Context, socket: str) -> str:
    """Return the peer as `127.0.0.1:43210` or `[::1]:43210`; for a Unix socket, its path."""
    return unquote(context.peer().partition(":")[2]) or socket


def host_and_port(context: Context) -> tuple[str, int]:
    """Return the host and the port of the peer, which must not be a Unix socket. IPv6 hosts are in brackets."""
    host, _, port = peer_of(context, "").rpartition(":")
    return host, int(port)


def client_of(context: Context) -> Client | None:
    """Return the peer's host and port as its socket reports them; None for a Unix socket."""
    if context.peer().startswith(UNIX):
        return None
    host, port = host_and_port(context)
    return normal_host(host), port


def host_of(context: Context) -> str:
    """Return the host of the peer, without its port; empty for a Unix socket."""
    return "" if context.peer().startswith(UNIX) else host_and_port(context)[0]

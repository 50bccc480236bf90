"""Who a client is: what the first message of its stream says, and the names in its certificate."""

from __future__ import annotations

from dataclasses import astuple
from urllib.parse import unquote

import grpc

from lbctl.xds.protocol.publication import NodeIdentity
from lbctl.xds.protocol.wire import StreamError, XdsNode

Context = grpc.aio.ServicerContext[object, bytes]
UNIX = "unix:"
"""How the peer of a Unix socket begins."""
_MAX_IDENTITY = 253


def identity_of(node: XdsNode | None, context: Context) -> NodeIdentity:
    """Return the client's identity. Raises StreamError for a node without an id, or that no log may show."""
    if node is None or not node.id:
        raise StreamError("the first request of a stream must name its node, with an id")
    if not all(len(text) <= _MAX_IDENTITY and text.isprintable() for text in astuple(node)):
        raise StreamError(f"what the node says of itself is not printable, or longer than {_MAX_IDENTITY} characters")
    return NodeIdentity(node, certificate_names(context))


def certificate_names(context: Context) -> frozenset[str]:
    """Return the alternative names of the client certificate, empty without one."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return frozenset(name.decode(errors="replace") for name in names)


def peer_of(context: Context, socket: str) -> str:
    """Return the peer as `127.0.0.1:43210` or `[::1]:43210`; for a Unix socket, its path."""
    return unquote(context.peer().partition(":")[2]) or socket


def host_and_port(context: Context) -> tuple[str, int]:
    """Return the host, that of IPv6 in brackets, and the port of the peer, which is none of a Unix socket."""
    host, _, port = peer_of(context, "").rpartition(":")
    return host, int(port)


def host_of(context: Context) -> str:
    """Return the host of the peer, without its port; empty for a Unix socket."""
    return "" if context.peer().startswith(UNIX) else host_and_port(context)[0]

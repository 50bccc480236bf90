"""Identifies a client by the first message of its stream and the names in its certificate."""

from __future__ import annotations

from dataclasses import astuple

from lbctl.xds.protocol.peer import Context
from lbctl.xds.protocol.publication import NodeIdentity
from lbctl.xds.protocol.wire import StreamError, XdsNode

_MAX_IDENTITY = 253


def identity_of(node: XdsNode | None, context: Context) -> NodeIdentity:
    """Return the client's identity. Raises StreamError for a node whose ID is missing or not printable."""
    if node is None or not node.id:
        raise StreamError("the first request on a stream must include a node with an id")
    if not all(len(text) <= _MAX_IDENTITY and text.isprintable() for text in astuple(node)):
        raise StreamError(
            f"a field in the node's identity is not printable or is longer than {_MAX_IDENTITY} characters"
        )
    return NodeIdentity(node, certificate_names(context))


def certificate_names(context: Context) -> frozenset[str]:
    """Return the alternative names of the client certificate; empty without a certificate."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return frozenset(name.decode(errors="replace") for name in names)

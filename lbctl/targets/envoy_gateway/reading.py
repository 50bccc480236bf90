"""How Envoy Gateway reads a request.

Envoy Gateway does not read bodies, but it rejects bodies larger than the listener's limit.
"""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r
from lbctl.targets.manifests.reading import read as read_headers


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    """Return the request as the gateway's routes see it, or its rejection."""
    request = read_headers(message, listener, version)
    return r.body_too_large(message, listener.max_body) or request if isinstance(request, Request) else request

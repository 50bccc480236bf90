"""How a cluster's gateways read a request. Bodies and queries are not read.

The class or the mesh determines which escapes in a path are decoded and which requests are rejected. Like Envoy, this
prediction decodes all escapes.
"""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    """Return the request as the gateway's routes see it, or its rejection."""
    del listener, version
    refusal = r.refused(message)
    if refusal:
        return refusal
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    model = next(iter(message.values(r.MODEL_HEADER)), None)
    return Request(message.method, r.host_of(message), path, r.headers(message), model)

"""How nginx reads a request: it decodes the whole path (`$uri`) and reads no body."""

from __future__ import annotations

import re

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r

_JOINS_HEADERS = (1, 23, 0)
_PASSED = re.compile(r"[a-z0-9-]+")
"""Regular expression for header names that nginx does not drop."""
_METHOD = re.compile(r"[A-Z_-]+")


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    """Return the request as nginx's rules see it, or nginx's rejection."""
    if not _METHOD.fullmatch(message.method):
        return r.Refusal(400, f"nginx does not support the method {message.method}")
    refusal = r.refused(message)
    if refusal:
        return refusal
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    too_large = r.body_too_large(message, listener.max_body)
    if too_large:
        return too_large
    headers = {name: values for name, values in r.headers(message).items() if _PASSED.fullmatch(name)}
    joined = {name: ", ".join(values) if version >= _JOINS_HEADERS else values[0] for name, values in headers.items()}
    single = {name: (value,) for name, value in joined.items()}
    model = joined.get(r.MODEL_HEADER)
    if not model:
        model = r.model_in_query(message, listener, decoded=False) or model
    return Request(message.method, r.host_of(message), path, single, model)

"""How nginx reads a request: `$uri` decoded whole; no body."""

from __future__ import annotations

import re

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r

_JOINS_HEADERS = (1, 23, 0)
_PASSED = re.compile(r"[a-z0-9-]+")
"""Names of headers that nginx does not drop."""
_METHOD = re.compile(r"[A-Z_-]+")


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    if not _METHOD.fullmatch(message.method):
        return r.Refusal(400, f"{message.method} is no method to nginx")
    refused = r.refused(message)
    if refused:
        return refused
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    large = r.body_too_large(message, listener.max_body)
    if large:
        return large
    headers = {name: values for name, values in r.headers(message).items() if _PASSED.fullmatch(name)}
    one = {name: ", ".join(values) if version >= _JOINS_HEADERS else values[0] for name, values in headers.items()}
    single = {name: (value,) for name, value in one.items()}
    return Request(message.method, r.host_of(message), path, single, one.get(r.MODEL_HEADER))

"""How Envoy reads a request: slashes unescaped, the rest of the path as written. Envoy compares that as it stands; what
lbctl asks of it (`escapes`) holds of what it decodes to. JSON bodies whole."""

from __future__ import annotations

import re

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r
from lbctl.targets.clarity import clear_model

HELD = 1_048_576
"""Bytes of a request that are held without a limit of the listener's: for its model, or for another try."""
JSON = r"(?i)(application/((.*\+)?json|x-www-form-urlencoded)|text/.*)(\s*;.*)?"
"""Content types of what may be JSON: curl calls it a form. Streams and uploads are not held."""
_METHODS = """
ACL BIND CHECKOUT CONNECT COPY DELETE GET HEAD LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MOVE MSEARCH NOTIFY OPTIONS
PATCH POST PROPFIND PROPPATCH PURGE PUT REBIND REPORT SEARCH SOURCE SUBSCRIBE TRACE UNBIND UNLINK UNLOCK UNSUBSCRIBE
"""


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    del version
    if message.method not in _METHODS.split():
        return r.Refusal(400, f"{message.method} is no method to Envoy")
    refused = r.refused(message)
    if refused:
        return refused
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    model = next(iter(message.values(r.MODEL_HEADER)), None)
    reads = model is None and r.by_model(listener) and _is_json(",".join(message.values("content-type")))
    large = r.body_too_large(message, listener.max_body or (HELD if reads else None))
    if large:
        return large
    if reads:
        model = r.model_in(message.body, first=False)
    unclear = None
    if r.wants_clear_model(listener):
        clear, named = clear_model(message)
        model = named if clear and named else model
        unclear = None if clear else (400, r.UNCLEAR)
    return Request(message.method, r.host_of(message), path, r.headers(message), model, unclear)


def _is_json(content_type: str) -> bool:
    return not content_type or re.fullmatch(JSON, content_type) is not None

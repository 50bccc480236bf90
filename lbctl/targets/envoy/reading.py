"""How Envoy reads a request.

It unescapes slashes and compares the rest of the path as it was sent; lbctl's conditions on the path (`escapes`) apply
to what the path decodes to. JSON bodies are read whole.
"""

from __future__ import annotations

import re

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r
from lbctl.targets.clarity import clear_model

HELD = 1_048_576
"""Bytes of a request that are held where the listener sets no limit, to read its model or for a retry."""
JSON = r"(?i)(application/((.*\+)?json|x-www-form-urlencoded)|text/.*)(\s*;.*)?"
"""Content types of what may be JSON; curl declares it as a form. Streams and uploads are not held."""
_METHODS = """
ACL BIND CHECKOUT CONNECT COPY DELETE GET HEAD LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MOVE MSEARCH NOTIFY OPTIONS
PATCH POST PROPFIND PROPPATCH PURGE PUT REBIND REPORT SEARCH SOURCE SUBSCRIBE TRACE UNBIND UNLINK UNLOCK UNSUBSCRIBE
"""


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    """Return the request as Envoy's routes see it, or the refusal with which Envoy answers it."""
    del version
    if message.method not in _METHODS.split():
        return r.Refusal(400, f"{message.method} is no method to Envoy")
    refusal = r.refused(message)
    if refusal:
        return refusal
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    model = next(iter(message.values(r.MODEL_HEADER)), None)
    reads_body = model is None and r.by_model(listener) and _is_json(",".join(message.values("content-type")))
    too_large = r.body_too_large(message, listener.max_body or (HELD if reads_body else None))
    if too_large:
        return too_large
    if reads_body:
        model = r.model_in(message.body, first=False)
    unclear = None
    if r.wants_clear_model(listener):
        clear, body_model = clear_model(message)
        model = body_model if clear and body_model else model
        unclear = None if clear else (400, r.UNCLEAR)
    if model is None:
        model = r.model_in_query(message, listener, decoded=False)
    return Request(message.method, r.host_of(message), path, r.headers(message), model, unclear)


def _is_json(content_type: str) -> bool:
    return not content_type or re.fullmatch(JSON, content_type) is not None

"""How Envoy reads a request.

It unescapes slashes and compares the rest of the path as sent. lbctl's path conditions (`escapes`) apply to the decoded
path. JSON bodies are read completely.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import replace

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import Request, matches, overlaps
from lbctl.targets import reading as r
from lbctl.targets.unambiguous_model import clear_model

HELD = 1_048_576
"""Bytes of a request that are buffered for retries if the listener sets no limit."""
CODINGS = ("gzip", "zstd", "br")
"""Content codings that Envoy decodes before it reads a body."""
JSON = r"(?i)(application/((.*\+)?json|x-www-form-urlencoded)|text/.*)(\s*;.*)?"
"""Content types that a JSON body may have. By default, curl labels JSON as form data. Streams and uploads are not
buffered."""
_METHODS = """
ACL BIND CHECKOUT CONNECT COPY DELETE GET HEAD LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MOVE MSEARCH NOTIFY OPTIONS
PATCH POST PROPFIND PROPPATCH PURGE PUT REBIND REPORT SEARCH SOURCE SUBSCRIBE TRACE UNBIND UNLINK UNLOCK UNSUBSCRIBE
"""


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    """Return the request as Envoy's routes see it, or Envoy's rejection."""
    del version
    if message.method not in _METHODS.split():
        return r.Refusal(400, f"Envoy does not support the method {message.method}")
    refusal = r.refused(message)
    if refusal:
        return refusal
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    too_large = r.body_too_large(message, listener.max_body)
    if too_large:
        return too_large
    model = next(iter(message.values(r.MODEL_HEADER)), None)
    named = model or r.model_in_query(message, listener, decoded=False)
    request = Request(message.method, r.host_of(message), path, r.headers(message), named)
    first = next((rule for rule in listener.rules if matches(rule, request)), None)
    if not r.by_model(listener) or (first is not None and not reads_body(listener, first)):
        return request
    coded = r.coding(message) is not None
    message, unread = _decoded(message)
    if _is_json(",".join(message.values("content-type"))):
        too_large = r.body_too_large(message, held(listener))
        if too_large:
            return too_large
        model = r.model_in(message.body, first=False) if model is None else model
    unclear = None
    if r.wants_clear_model(listener):
        clear, body_model = clear_model(message) if message.body or not coded else (False, None)
        model = body_model if clear and body_model else model
        unclear = None if clear else (400, r.UNCLEAR)
    if model is None:
        model = r.model_in_query(message, listener, decoded=False)
    return replace(request, model=model, unclear=unclear, unread=unread if model is None else None)


def held(listener: Listener) -> int:
    """Return the number of bytes of a body that are buffered in order to read it."""
    return max(listener.inspect, listener.max_body or 0)


def reads_body(listener: Listener, rule: Rule) -> bool:
    """Return whether a body's model may decide that a request matches `rule`, or an earlier rule that overlaps it.

    Bodies of other requests are not buffered.
    """
    bare, index = replace(rule, models=()), listener.rules.index(rule)
    earlier = {replace(item, route="", models=(), clear_model=False) for item in listener.rules[:index] if item.models}
    return bool(rule.models) or any(overlaps(item, bare) for item in earlier)


def _decoded(message: r.Message) -> tuple[r.Message, tuple[int, str] | None]:
    """Return the message with its body decoded, or the rejection of a content coding that Envoy does not decode."""
    coding = r.coding(message)
    if coding is None or coding in CODINGS:
        headers = tuple((name, value) for name, value in message.headers if name != "content-encoding")
        return replace(message, headers=headers, body=_decompressed(message.body, coding)), None
    return message, (415, r.CODED)


def _decompressed(body: bytes, coding: str | None) -> bytes:
    """Return the content of a body; empty if it is malformed or has a coding that this prediction cannot decode."""
    if coding is None:
        return body
    try:
        return zlib.decompressobj(31).decompress(body) if coding == "gzip" else b""
    except zlib.error:
        return b""


def _is_json(content_type: str) -> bool:
    return not content_type or re.fullmatch(JSON, content_type) is not None

"""How HAProxy reads a request: it decodes the whole path and reads the part of a JSON body that it buffers."""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r
from lbctl.targets.unambiguous_model import clear_model


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    """Return the request as HAProxy's rules see it, or HAProxy's rejection."""
    del version
    refusal = r.refused(message)
    if refusal:
        return refusal
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    too_large = r.body_too_large(message, listener.max_body)
    if too_large:
        return too_large
    model = next(reversed(message.values(r.MODEL_HEADER)), None)
    if model is None and r.by_model(listener):
        model = r.model_in(message.body, first=True)
    unclear = None
    if r.wants_clear_model(listener):
        is_clear, body_model = clear_model(message)
        model = body_model if is_clear and body_model and not message.values(r.MODEL_HEADER) else model
        unclear = _too_long(message, listener) or (None if is_clear else (400, r.UNCLEAR))
    if model is None:
        model = r.model_in_query(message, listener, decoded=True)
    unread = None
    if model is None:
        unread = (415, r.CODED) if r.coding(message) else _too_long(message, listener)
    return Request(message.method, r.host_of(message), path, r.headers(message), model, unclear, unread)


def _too_long(message: r.Message, listener: Listener) -> tuple[int, str] | None:
    beyond_inspect = r.body_too_large(message, listener.inspect)
    return (beyond_inspect.status, beyond_inspect.message) if beyond_inspect else None

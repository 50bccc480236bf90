"""How HAProxy reads a request: the path decoded whole; JSON bodies as far as they are held."""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r
from lbctl.targets.clarity import clear_model


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    del version
    refused = r.refused(message)
    if refused:
        return refused
    path = r.decoded(message.path)
    if path is None:
        return r.AMBIGUOUS_PATH
    large = r.body_too_large(message, listener.max_body)
    if large:
        return large
    model = next(reversed(message.values(r.MODEL_HEADER)), None)
    if model is None and r.by_model(listener):
        model = r.model_in(message.body, first=True)
        if model is None:
            deep = r.body_too_large(message, listener.inspect)
            if deep:
                return deep
    unclear = None
    if r.wants_clear_model(listener):
        clear, named = clear_model(message)
        model = named if clear and named and not message.values(r.MODEL_HEADER) else model
        deep = r.body_too_large(message, listener.inspect)
        unclear = (deep.status, deep.words) if deep else None if clear else (400, r.UNCLEAR)
    return Request(message.method, r.host_of(message), path, r.headers(message), model, unclear)

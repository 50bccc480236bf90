"""How HAProxy reads a request: the path decoded whole, slashes merged, dot segments refused; JSON bodies as far as
they are held."""

from __future__ import annotations

import re

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r

_DOTS = re.compile(r"(^|/)[.][.]?(/|$)")


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    del version
    path = r.decoded(message.path)
    if path is None or "\0" in path:
        return r.Refusal(400, "the path is wrongly encoded")
    path = r.merged(path)
    if _DOTS.search(path):
        return r.Refusal(400, "the path has dot segments")
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
    return Request(message.method, r.host_of(message), path, r.headers(message), model)

"""How nginx reads a request: `$uri` decoded whole, dot segments resolved, slashes merged; no body."""

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
    path = _path(message.path)
    if path is None:
        return r.Refusal(400, "the path is wrongly encoded, or leads above its root")
    if not _METHOD.fullmatch(message.method):
        return r.Refusal(400, f"{message.method} is no method to nginx")
    if message.method == "TRACE":
        return r.Refusal(405, "nginx refuses TRACE")
    large = r.body_too_large(message, listener.max_body)
    if large:
        return large
    headers = {name: values for name, values in r.headers(message).items() if _PASSED.fullmatch(name)}
    one = {name: ", ".join(values) if version >= _JOINS_HEADERS else values[0] for name, values in headers.items()}
    single = {name: (value,) for name, value in one.items()}
    return Request(message.method, r.host_of(message), path, single, one.get(r.MODEL_HEADER))


def _path(raw: str) -> str | None:
    path = r.decoded(raw)
    if path is None or "\0" in path:
        return None
    kept: list[str] = []
    segments = r.merged(path).split("/")[1:]
    for place, segment in enumerate(segments):
        last = place == len(segments) - 1
        if segment == "..":
            if not kept:
                return None
            kept.pop()
        elif segment != ".":
            kept.append(segment)
        if last and segment in (".", ".."):
            kept.append("")
    return "/" + "/".join(kept)

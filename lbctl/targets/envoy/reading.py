"""How Envoy reads a request: slashes unescaped and merged, dot segments resolved, the path as a browser would write it.
Envoy compares that as it stands; what lbctl asks of it (`escapes`) holds of what it decodes to. JSON bodies whole."""

from __future__ import annotations

import re

from lbctl.ir.listeners import Listener, PathMatch
from lbctl.ir.matching import Request
from lbctl.targets import reading as r
from lbctl.targets.envoy import escapes

HELD = 1_048_576
"""Bytes of a request that are held without a limit of the listener's: for its model, or for another try."""
JSON = r"(?i)(application/((.*\+)?json|x-www-form-urlencoded)|text/.*)(\s*;.*)?"
"""Content types of what may be JSON: curl calls it a form. Streams and uploads are not held."""
_ESCAPED_SLASH = re.compile("%(2[fF]|5[cC])")
_DOT = re.compile(r"\.|%2[eE]")
_HEX = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_WRITTEN_ESCAPED = re.compile(r'[\0- "<>`{}^#?\x7f-\xff]')
_ROOT = PathMatch("exact", "/")
_METHODS = """
ACL BIND CHECKOUT CONNECT COPY DELETE GET HEAD LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MOVE MSEARCH NOTIFY OPTIONS
PATCH POST PROPFIND PROPPATCH PURGE PUT REBIND REPORT SEARCH SOURCE SUBSCRIBE TRACE UNBIND UNLINK UNLOCK UNSUBSCRIBE
"""


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    del version
    if message.method not in _METHODS.split():
        return r.Refusal(400, f"{message.method} is no method to Envoy")
    path = _path(message.path)
    if path is None or (refuses_unfit(listener) and re.fullmatch(escapes.UNFIT, path)):
        return r.Refusal(400, "the path is wrongly encoded, or two slashes alone")
    model = next(iter(message.values(r.MODEL_HEADER)), None)
    reads = model is None and r.by_model(listener) and _is_json(",".join(message.values("content-type")))
    large = r.body_too_large(message, listener.max_body or (HELD if reads else None))
    if large:
        return large
    if reads:
        model = r.model_in(message.body, first=False)
    decoded = _HEX.sub(lambda found: chr(int(found[1], 16)), path)
    return Request(message.method, r.host_of(message), decoded, r.headers(message), model)


def refuses_unfit(listener: Listener) -> bool:
    """Whether paths that its expressions cannot judge are answered 400. Prefixes and other exact paths match none of
    them."""
    return any(rule.path.kind == "regex" or rule.path == _ROOT for rule in listener.rules)


def _is_json(content_type: str) -> bool:
    return not content_type or re.fullmatch(JSON, content_type) is not None


def _path(raw: str) -> str | None:
    """As Chromium's library writes it, which Envoy uses; then without double slashes, but for a path that is nothing
    else: Envoy leaves two."""
    path = _ESCAPED_SLASH.sub(lambda found: "/" if found[1].startswith("2") else "\\", raw)
    written, at = "", 0
    while at < len(path):
        dot = _DOT.match(path, at)
        if dot:
            written, at = _dotted(path, written, dot.end())
            continue
        escape = _HEX.match(path, at)
        if escape:
            byte = chr(int(escape[1], 16))
            if byte == "\0":
                return None
            written += byte if _UNRESERVED.fullmatch(byte) else escape[0]
            at = escape.end()
            continue
        character = "/" if path[at] == "\\" else path[at]
        written += f"%{ord(character):02X}" if _WRITTEN_ESCAPED.fullmatch(character) else character
        at += 1
    return r.merged(written) if written.strip("/") or len(written) < 2 else "//"


def _dotted(path: str, written: str, after: int) -> tuple[str, int]:
    """What is written after a dot that ends at `after`, and where to go on."""
    if not written.endswith("/"):
        return written + ".", after
    if after == len(path) or path[after] in "/\\":
        return written, after + 1
    second = _DOT.match(path, after)
    if second and (second.end() == len(path) or path[second.end()] in "/\\"):
        above = written[:-1].rfind("/")
        return written[: above + 1] if above >= 0 else written, second.end() + 1
    return written + ".", after

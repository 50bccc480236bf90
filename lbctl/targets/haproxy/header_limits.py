"""The limits of request headers, which HAProxy compares with what the client sent.

Its parser has limits of its own for the whole process. They are set a little higher, so that a request above the
listener's limit still gets an answer of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import MAX_HEADER_BYTES, MAX_HEADER_COUNT, Listener
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_REFUSED = quote.error("the headers are too large", "too_large")
_SPARE_LINES = 50
COUNT = (
    Token("http-request set-var(txn.header_count) req.fhdr_cnt"),
    Token("http-request set-var(txn.header_bytes) req.hdrs,length"),
)
"""The lines that measure the headers, before HAProxy adds some."""


def lines(listener: Listener) -> Iterator[Token]:
    """Yield the lines that enforce the limits, once the request has an id."""
    path = ("listeners", listener.name, "headers")
    limits = {"header_count": listener.max_header_count, "header_bytes": listener.max_header_bytes}
    for name, limit in limits.items():
        yield line(f"http-request return status 431 {_REFUSED} if {{ var(txn.{name}) -m int gt {limit} }}", source=path)


def parser_lines(view: View) -> int:
    """Return `tune.http.maxhdr`: the lines of a message that HAProxy's parser takes."""
    return max((listener.max_header_count for listener in view.listeners), default=0) + _SPARE_LINES


def diagnostics(listener: Listener, view: View) -> Iterator[Diagnostic]:
    """Yield that a fragment has the parser's limits of its host."""
    if view.proxy.is_fragment and _limits(listener) != (MAX_HEADER_COUNT, MAX_HEADER_BYTES):
        message = (
            "a fragment cannot set what HAProxy's parser takes: `tune.http.maxhdr` and `tune.bufsize` of the host do"
        )
        path, code = ("listeners", listener.name, "headers"), BY_ID["listener.headers.max_bytes"].code
        yield Diagnostic(code, message, path=path, hint="set them in the host's `global`", severity="warning")


def _limits(listener: Listener) -> tuple[int, int]:
    return listener.max_header_count, listener.max_header_bytes

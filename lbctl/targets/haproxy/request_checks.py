"""Requests that HAProxy rejects before it looks for a route: malformed, ambiguous, or with headers that are too large.

A replica might interpret an ambiguous request differently. Header limits apply to the client's original headers.
HAProxy's parser has its own process-wide limits. They are set slightly higher, so that a request above the listener's
limit still gets a JSON response.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import MAX_HEADER_BYTES, MAX_HEADER_COUNT, Listener
from lbctl.ir.snapshot import View
from lbctl.targets import request_grammar
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""Control characters other than tabs and the line ends between headers."""
_HEADER = quote.error("a header contains a control character", "bad_request")
_FRAMING = quote.error("the only supported transfer-encoding is chunked, and only with HTTP/1.1", "bad_request")
_HOST = quote.error(request_grammar.HOST_MESSAGE, "bad_request")
_METHOD = quote.error(request_grammar.METHOD_MESSAGE, "bad_request")
_PATH = quote.error(request_grammar.TARGET_MESSAGE, "bad_request")
_TOO_LARGE = quote.error("the request headers are too large", "too_large")
_SPARE_LINES = 50
HEADER_SIZES = (
    line("http-request set-var(txn.header_count) req.fhdr_cnt"),
    line("http-request set-var(txn.header_bytes) req.hdrs,length"),
)
"""Lines that measure the headers before HAProxy adds its own."""


def lines() -> Iterator[Token]:
    """Yield the lines that reject malformed and ambiguous requests.

    All other requests are forwarded as written, except that scheme and authority are dropped, which the Host header
    repeats. HAProxy itself has already rejected Host lines that differ from each other or from the authority.
    """
    names, unusual_method = " ".join(request_grammar.REFUSED_METHODS), quote.word(request_grammar.UNFIT_METHOD)
    yield line(
        f"http-request return status 405 {_METHOD} if {{ method {names} }} || {{ method -m reg", unusual_method, "}"
    )
    host = quote.word(f"^{request_grammar.HOST}$")
    yield line(f"http-request return status 400 {_HOST} if !{{ req.fhdr(host) -m reg", host, "}")
    ambiguous = quote.word(request_grammar.AMBIGUOUS)
    yield line(f"http-request return status 400 {_PATH} if !{{ path_beg / }} || {{ path -m reg", ambiguous, "}")
    yield line("http-request set-uri %[pathq] if !{ url_beg / } { path_beg / }")
    yield line(f"http-request return status 400 {_HEADER} if {{ req.hdrs -m reg", quote.word(_CONTROL), "}")
    chunked = "{ req.fhdr(transfer-encoding) -m found }"
    other = "!{ req.fhdr(transfer-encoding) -m str -i chunked }"
    yield line(f"http-request return status 400 {_FRAMING} if {chunked} {other} || {chunked} {{ req.ver 1.0 }}")


def header_limits(listener: Listener) -> Iterator[Token]:
    """Yield the lines that enforce the limits. The lines run after the request has an ID."""
    path = ("listeners", listener.name, "headers")
    limits = {"header_count": listener.max_header_count, "header_bytes": listener.max_header_bytes}
    for name, limit in limits.items():
        yield line(
            f"http-request return status 431 {_TOO_LARGE} if {{ var(txn.{name}) -m int gt {limit} }}", source=path
        )


def parser_lines(view: View) -> int:
    """Return `tune.http.maxhdr`: the maximum number of header lines that HAProxy's parser accepts in a message."""
    return max((listener.max_header_count for listener in view.listeners), default=0) + _SPARE_LINES


def diagnostics(listener: Listener, view: View) -> Iterator[Diagnostic]:
    """Report that a fragment uses the host's parser limits."""
    if view.proxy.is_fragment and _limits(listener) != (MAX_HEADER_COUNT, MAX_HEADER_BYTES):
        message = (
            "a fragment cannot set the limits of HAProxy's parser: `tune.http.maxhdr` and `tune.bufsize` of the host "
            "apply"
        )
        path, code = ("listeners", listener.name, "headers"), BY_ID["listener.headers.max_bytes"].code
        yield Diagnostic(code, message, path=path, hint="set them in the host's `global`", severity="warning")


def _limits(listener: Listener) -> tuple[int, int]:
    return listener.max_header_count, listener.max_header_bytes

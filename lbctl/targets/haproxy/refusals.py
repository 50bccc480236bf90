"""Requests that HAProxy refuses before it looks for a route, because a replica could read them in another way."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.targets import request_grammar
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""Control characters other than tabs and the line ends between headers."""
_HEADER = quote.error("a header holds a control character", "bad_request")
_FRAMING = quote.error("the transfer-encoding is not chunked alone, or of HTTP/1.0", "bad_request")
_HOST = quote.error(request_grammar.HOST_MESSAGE, "bad_request")
_METHOD = quote.error(request_grammar.METHOD_MESSAGE, "bad_request")
_PATH = quote.error(request_grammar.TARGET_MESSAGE, "bad_request")


def lines() -> Iterator[Token]:
    """Yield the lines that refuse such requests.

    All other requests are forwarded as written, but always without scheme and authority, which the Host header repeats.
    HAProxy has already refused Host lines that differ from each other or from the authority.
    """
    names, unusual_method = " ".join(request_grammar.REFUSED_METHODS), quote.word(request_grammar.UNFIT_METHOD)
    yield line(
        f"http-request return status 405 {_METHOD} if {{ method {names} }} || {{ method -m reg", unusual_method, "}"
    )
    host = quote.word(f"^{request_grammar.HOST}$")
    yield line(f"http-request return status 400 {_HOST} if !{{ req.fhdr(host) -m reg", host, "}")
    ambiguous = quote.word(request_grammar.AMBIGUOUS)
    yield line(f"http-request return status 400 {_PATH} if !{{ path_beg / }} || {{ path -m reg", ambiguous, "}")
    yield Token("http-request set-uri %[pathq] if !{ url_beg / } { path_beg / }")
    yield line(f"http-request return status 400 {_HEADER} if {{ req.hdrs -m reg", quote.word(_CONTROL), "}")
    chunked = "{ req.fhdr(transfer-encoding) -m found }"
    other = "!{ req.fhdr(transfer-encoding) -m str -i chunked }"
    yield Token(f"http-request return status 400 {_FRAMING} if {chunked} {other} || {chunked} {{ req.ver 1.0 }}")

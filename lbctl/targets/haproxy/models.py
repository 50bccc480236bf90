"""The model in a request, if access depends on it: HAProxy and every replica must find the same model.

If a key is repeated, HAProxy's own JSON converter returns the first value. That converter fails on deeply nested bodies
and accepts invalid JSON. For this reason, the whole body must first match the JSON grammar, written as an expression
with recursive groups. The groups are possessive and never backtrack, so matching time is proportional to the body's
length.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.listeners import Listener
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.reading import CODED, UNCLEAR
from lbctl.targets.token import Token

_GRAMMAR = "".join(
    (
        r"(?(DEFINE)",
        r"(?<space>[ \t\r\n]*+)",
        r'(?<next>,(?&space)(?=")|(?=\}))',
        r'(?<text>"[^"\\\x00-\x1f]*+(?>\\(?>["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")',
        r"(?<number>-?(?>0|[1-9][0-9]*+)(?>\.[0-9]++)?+(?>[eE][+-]?[0-9]++)?+)",
        r"(?<object>\{(?&space)(?>(?&text)(?&space):(?&space)(?&value)(?&space)(?&next))*+\})",
        r"(?<list>\[(?&space)(?>(?&value)(?&space)(?>,(?&space)(?!\])|(?=\])))*+\])",
        r"(?<value>(?&text)|(?&number)|true|false|null|(?&object)|(?&list))",
        r'(?<other>(?!"[mM][oO][dD][eE][lL]")"[^"\\\x00-\x1f]*+"(?&space):(?&space)(?&value)(?&space)(?&next))',
        r")",
    )
)
_MODEL = r'"model"(?&space):(?&space)"((?>[^"\\\x00-\x1f]|\\/)*+)"(?&space)(?&next)'
_BODY = rf"^{_GRAMMAR}(?&space)\{{(?&space)(?&other)*+(?>{_MODEL}(?&other)*+)?+\}}(?&space)\z"
"""An object whose keys contain no escapes, with at most one `model` in any case. The ninth and last group is the
model's text.

The grammar comes first, because the old PCRE does not compile calls to groups that are defined later.
"""
_TYPE = r'^application/(?:[a-z0-9._-]+\+)?json *(?:; *(?:charset="?utf-8"?)? *)?$'

_QUERY = r"'(^|[&;])\s*model\s*([=[&;]|$)'"

_REFUSED = quote.error(UNCLEAR, "bad_request")
_CODED = quote.error(CODED, "bad_request")
_CODING = "req.fhdr(content-encoding)"
_TOO_LARGE = quote.error("the request body is too large", "too_large")


def lines(listener: Listener, held: int) -> Iterator[Token]:
    """Yield the lines that set txn.model to the model in the body, unless the header names one.

    The lines also set txn.unclear and txn.unseen. `held` is the number of header and body bytes that always fit into a
    buffer.
    """
    yield line("acl has_body req.body_size gt 0")
    yield line("acl has_length req.hdr(content-length) -m found")
    yield line("acl is_json req.body -m reg --", quote.word(_BODY))
    yield line("acl is_json_type req.fhdr(content-type) -m reg -i --", quote.word(_TYPE))
    yield from _unseen(listener, held)
    yield from _named()
    yield from (line("http-request set-var(txn.unclear) bool(true) if", condition) for condition in _unclear())


def refusals(*conditions: str) -> Iterator[Token]:
    """Yield the lines that reject a request that meets `conditions` and names its model ambiguously."""
    for status, body, flag in ((413, _TOO_LARGE, "unseen"), (400, _REFUSED, "unclear")):
        yield line(
            f"http-request return status {status} {body} if !routed", *conditions, f"{{ var(txn.{flag}) -m bool }}"
        )


def unread(listener: Listener, *conditions: str) -> Iterator[Token]:
    """Yield the lines that reject a request that meets `conditions` but has no model in the readable body."""
    path, without_model = ("listeners", listener.name, "inspect"), "!{ var(txn.model) -m found }"
    coded = f"{{ req.body_size gt 0 }} {{ {_CODING} -m found }} !{{ {_CODING} -m str -i identity }}"
    refuse = f"http-request return status 415 {_CODED} if !routed"
    yield line(refuse, *conditions, without_model, coded, source=path)
    refuse = f"http-request return status 413 {_TOO_LARGE} if !routed"
    yield line(refuse, *conditions, without_model, f"{{ req.body_size gt {listener.inspect} }}", source=path)


def _unseen(listener: Listener, held: int) -> Iterator[Token]:
    set_unseen, path = "http-request set-var(txn.unseen) bool(true) if", ("listeners", listener.name, "inspect")
    yield line("http-request set-var(txn.size) req.body_size")
    yield line("http-request set-var(txn.headers) req.hdrs,length")
    yield line(set_unseen, f"{{ req.body_size gt {listener.inspect} }}", source=path)
    yield line("http-request set-var(txn.held) req.body_len")
    yield line(set_unseen, "has_length { req.body_len,sub(txn.size) lt 0 }", source=path)
    yield line(set_unseen, f"has_body !has_length {{ req.body_size,add(txn.headers) gt {held} }}", source=path)


def _named() -> Iterator[Token]:
    pattern = _BODY.replace("\\", "\\\\").replace('"', '\\"')
    model_in_body = quote.word(rf'req.body,regsub("{pattern}","\\9"),regsub("\\\\/","/",g)')
    yield line("http-request set-var(txn.named)", model_in_body, "if has_body is_json")
    yield line("acl is_named var(txn.named),length gt 0")
    yield line("acl has_header req.fhdr(x-model) -m found")
    yield line("http-request set-var(txn.model) var(txn.named) if is_named !has_header")


def _unclear() -> Iterator[str]:
    """Yield the conditions under which a replica may find a different model than HAProxy.

    Messages in a WebSocket are not read at all.
    """
    yield "has_body !is_json"
    yield "has_body !{ req.body,lower,length,sub(txn.held) eq 0 }"  # as text, a body ends at its first zero byte
    yield "has_body { req.hdr(content-type) -m found } !is_json_type"
    yield "has_body { req.fhdr_cnt(content-type) gt 1 }"
    yield f"has_body {{ {_CODING} -m found }} !{{ {_CODING} -m str -i identity }}"
    yield "has_body { req.fhdr_cnt(content-encoding) gt 1 }"
    yield "has_header is_named !{ var(txn.named),strcmp(txn.model) eq 0 }"
    yield "{ req.fhdr_cnt(x-model) gt 1 }"
    yield "{ req.fhdr(upgrade) -m str -i websocket }"
    yield from _in_query()


def _in_query() -> Iterator[str]:
    """Yield the conditions under which a server may find a model in a GET's query.

    A query that HAProxy cannot decode or that it truncates may contain a model.
    """
    yield f"{{ method GET }} {{ query,url_dec(1) -m reg -i -- {_QUERY} }}"
    yield "{ method GET } { query -m sub -- % } !{ query,url_dec(1) -m found }"
    yield "{ method GET } { query -m sub -- %00 }"

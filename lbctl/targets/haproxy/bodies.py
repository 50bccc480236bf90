"""Request bodies: which listeners read them, how they are buffered, and the value that a pool hashes.

If the value is beyond the part of the body that HAProxy buffers, the response is 413.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import HashKey, Pool
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_TOO_DEEP = quote.error("the field that determines the replica is too far into the body", "too_large")
READINGS = (
    ("req.body", ""),
    (r'req.body,regsub("^\xEF\xBB\xBF",""),regsub("\\\\/","/",g)', r"{ req.body -m reg '^\xEF\xBB\xBF|\\/' }"),
)
"""Ways to read a JSON body, in the order in which they are tried, each with an additional condition.

HAProxy's converter fails on text with a byte order mark or an escaped slash, which some libraries write.
"""
_PROMPT = "http-request set-var-fmt(txn.hashed)"


def wait(*conditions: str, source: Path = ()) -> Iterator[Token]:
    """Yield the lines that buffer a request that meets the conditions until its body is complete or fills the buffer.

    No timeout limits the entire upload. The request ends after a period of silence, just as it does while it is being
    forwarded to a replica. A WebSocket has no body in HTTP/1 and an endless one in HTTP/2.
    """
    for each in ("!{ req.ver -m beg 2 }", "!{ req.hdr(upgrade) -m str -i websocket }"):
        yield line(f"http-request wait-for-body time {quote.FOREVER}ms if", *conditions, each, source=source)


def lines(pool: Pool, view: View) -> Iterator[Token]:
    """Yield the lines that set txn.hashed to the value that the pool hashes."""
    key, path = pool.balance.key, ("pools", pool.name, "balance", "hash", "key")
    if key is None or key.kind not in ("json_body", "prompt_prefix"):
        return
    yield from wait(source=path)
    yield from _value(key, path)
    too_long = f"{{ req.body_size gt {_inspected_bytes(pool, view)} }}"
    yield line(f"http-request return status 413 {_TOO_DEEP} if !{{ var(txn.hashed) -m found }}", too_long, source=path)
    if key.kind == "prompt_prefix":
        model = "%[req.body,json_query('$.model')]"
        yield line(_PROMPT, quote.word(f"{model} %[var(txn.hashed),bytes(0,{key.bytes})]"), "if prompted", source=path)


def _value(key: HashKey, path: tuple[str, ...]) -> Iterator[Token]:
    without_value = "!{ var(txn.hashed) -m found }"
    for number, (body, condition) in enumerate(READINGS):
        unless_found = f"if {without_value} {condition}" if number else ""
        name = key.name if key.kind == "json_body" else "$.prompt"
        fetch = quote.word(f"{body},{quote.sample('json_query', name)}", path)
        yield line("http-request set-var(txn.hashed)", fetch, unless_found)
        if key.kind == "prompt_prefix":
            first, second = (f"{body},json_query('$.messages[{place}].content')" for place in (0, 1))
            yield line(f"acl chat{number}", quote.word(first), "-m found")
            yield line(_PROMPT, quote.word(f"%[{first}]%[{second}]"), f"if {without_value} chat{number}", condition)
    if key.kind == "prompt_prefix":
        yield line("acl prompted var(txn.hashed) -m found")


def reads_bodies(listener: Listener, view: View) -> bool:
    """Return whether a rule or a pool of this listener depends on the content of a JSON body."""
    pools = [view.pools[name] for rule in listener.rules for name in _pools(view, rule.route)]
    return any(rule.models for rule in listener.rules) or any(map(_hashes_body, pools))


def _hashes_body(pool: Pool) -> bool:
    return pool.balance.key is not None and pool.balance.key.kind in ("json_body", "prompt_prefix")


def _inspected_bytes(pool: Pool, view: View) -> int:
    """Return the minimum number of body bytes that every listener of this pool buffers."""
    limits = [
        listener.inspect
        for listener in view.listeners
        if any(pool.name in _pools(view, rule.route) for rule in listener.rules)
    ]
    return min(limits, default=0)


def _pools(view: View, route: str) -> tuple[str, ...]:
    action = view.routes[route].action
    return action.pools if isinstance(action, Forward) else ()

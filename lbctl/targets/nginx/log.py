"""The access log of the contract: one JSON object a line, whoever writes the request.

nginx escapes either every value of a format or none, and an escaped one can never be `null`. So nothing is escaped, and
every value comes from a map that lets only harmless text through: a path is logged up to its first byte that JSON would
have to escape (clients percent-encode such bytes; those that do not are logged shortened, never wrongly).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.targets.nginx import quote
from lbctl.targets.nginx.blocks import LogFormat
from lbctl.targets.nginx.pool import shown
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

HARMLESS = r" !#-\[\]-~"
"""Of a character class: what JSON takes as it stands."""
_HARMLESS_PATH = r"!#->@-\[\]-~"
"""The same without the blank and the question mark."""
_DEFAULT = Token("default")
_NULL = Token("null")
_MOST_TRIES = 16


def formats(listener: Listener, number: int, request_id: str) -> LogFormat:
    """The format of one listener; its name is part of the text, so each has its own."""
    name = Token(f"lb_log{number}")
    if listener.access_log.format == "text":
        text = (
            f"$lb_ts $remote_addr {listener.name} $lb_log_method $lb_log_path $status route=$lb_route pool=$lb_pool "
            f"replica=$lb_replica out=$body_bytes_sent time=$request_time id={request_id}"
        )
        return LogFormat(name, quote.script(text))
    return LogFormat(name, quote.script(_json(listener, request_id)))


def _json(listener: Listener, request_id: str) -> str:
    fields = {
        "ts": '"$lb_ts"',
        "request_id": f'"{request_id}"',
        "client": '"$remote_addr"',
        "tenant": "$lb_log_tenant",
        "listener": f'"{listener.name}"',
        "method": "$lb_log_method",
        "path": "$lb_log_path",
        "route": "$lb_log_route",
        "pool": "$lb_log_pool",
        "variant": "$lb_log_variant",
        "replica": "$lb_replica",
        "model": "$lb_log_model" if _by_model(listener) else "null",
        "status": "$lb_log_status",
        "bytes_in": "$request_length",
        "bytes_out": "$body_bytes_sent",
        "t_queue": "null",
        "t_connect": "$lb_t_connect",
        "t_first_byte": "$lb_t_first_byte",
        "t_total": "$lb_t_total",
        "retries": "$lb_retries",
        "flags": "$lb_flags",
    }
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def maps(book: RenderContext) -> None:
    """What the formats read."""
    stamp = r"~^(.{19})([^ ]*) \d+\.(\d{3})$"
    entries = [(_DEFAULT, Token("$time_iso8601")), (quote.plain(stamp), _of("$1.$3$2"))]
    book.map("$time_iso8601 $msec", "$lb_ts", entries)
    text = f"~^([{HARMLESS}]+)"
    book.map("$request_method", "$lb_log_method", [(_DEFAULT, _NULL), (quote.plain(text), _of('"$1"'))])
    path = f"~^([{_HARMLESS_PATH}]+)"
    book.map("$request_uri", "$lb_log_path", [(_DEFAULT, _NULL), (quote.plain(path), _of('"$1"'))])
    for name in ("route", "pool", "variant"):
        book.map(f"$lb_{name}", f"$lb_log_{name}", [(_DEFAULT, Token(f"$lb_{name}")), (Token('""'), _NULL)])
    book.map("$lb_tenant", "$lb_log_tenant", [(_DEFAULT, _of('"$lb_tenant"')), (Token('""'), _NULL)])
    if any(_by_model(item) for item in book.view.listeners):
        whole = f"~^([{HARMLESS}]+)\\z"
        book.map("$http_x_model", "$lb_log_model", [(_DEFAULT, _NULL), (quote.plain(whole), _of('"$1"'))])
    book.map("$status", "$lb_log_status", [(_DEFAULT, _NULL), (quote.plain("~^[1-9]"), Token("$status"))])
    book.map("$upstream_status", "$lb_flags", [(_DEFAULT, _NULL), (quote.plain(text), _of('"$1"'))])
    _milliseconds(book, "$upstream_connect_time", "$lb_t_connect")
    _milliseconds(book, "$upstream_header_time", "$lb_t_first_byte")
    _milliseconds(book, "$request_time", "$lb_t_total")
    _retries(book)
    _replicas(book)


def _by_model(listener: Listener) -> bool:
    return any(rule.models for rule in listener.rules)


def _of(text: str) -> Token:
    return quote.script(text)


def _milliseconds(book: RenderContext, source: str, variable: str) -> None:
    """nginx says seconds with three decimals, one for each try: the last counts."""
    entries = [
        (_DEFAULT, _NULL),
        (quote.plain(r"~(?:^|[ ,])0\.0{0,2}(\d+)$"), Token("$1")),
        (quote.plain(r"~(?:^|[ ,])(\d+)\.(\d{3})$"), Token("$1$2")),
    ]
    book.map(source, variable, entries)


def _retries(book: RenderContext) -> None:
    tries = [(quote.plain(rf"~^(?:[^ ]+(?: :)? ){{{n}}}[^ ]+$"), Token(str(n))) for n in range(_MOST_TRIES)]
    book.map("$upstream_addr", "$lb_retries", [(_DEFAULT, Token(str(_MOST_TRIES))), (Token('""'), Token("0")), *tries])


def _replicas(book: RenderContext) -> None:
    book.map("$upstream_addr", "$lb_last_address", [(_DEFAULT, Token('""')), (quote.plain("~([^, ]+)$"), Token("$1"))])
    entries: dict[str, tuple[Token, Token]] = {}
    for pool in book.view.pools.values():
        for replica, key in _keys(pool):
            path = ("pools", pool.name, "replicas", replica.name)
            entries.setdefault(key.lower(), (quote.plain(key), _entry(replica.name, path)))
    book.map("$lb_pool $lb_last_address", "$lb_replica", [(_DEFAULT, _NULL), *entries.values()])


def _keys(pool: Pool) -> Iterator[tuple[Replica, str]]:
    """How a line tells a replica: by its address, or by its port where that is a host's name, of which nginx logs only
    what it resolved to; if several have names and one port, by nothing."""
    name = json.dumps(pool.name)
    ports = Counter(item.address.port for item in pool.replicas if shown(item.address) is None)
    for replica in pool.replicas:
        address = shown(replica.address)
        if address is not None:
            yield replica, f"{name} {address}"
        elif ports[replica.address.port] == 1:
            yield replica, f"~^{quote.literal(name)} [^ ]+:{replica.address.port}$"


def _entry(name: str, path: Path) -> Token:
    return quote.value(json.dumps(name), path)

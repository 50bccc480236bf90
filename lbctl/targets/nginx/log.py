"""The documented access log: one JSON object per line, for every request.

nginx escapes either all values of a format or none, and an escaped value can never be `null`. For this reason nothing
is escaped, and every value comes from a map that only passes harmless text. A path is logged up to the first byte that
JSON would have to escape. Clients usually percent-encode such bytes. Paths from other clients are truncated in the log,
but never incorrect.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.blocks import LogFormat
from lbctl.targets.nginx.pool import shown
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.nginx.rules import MODEL_HEADER, model_in_query
from lbctl.targets.reading import by_model
from lbctl.targets.token import Token

HARMLESS = r" !#-\[\]-~"
"""Content of a character class: the characters that JSON does not escape."""
_HARMLESS_PATH = r"!#->@-\[\]-~"
"""Content of a character class: the characters that JSON does not escape, except the space and the question mark."""
_DEFAULT = Token("default")
_NULL = Token("null")
_LOGGED = Token("$lb_logged")
_OWN_ERRORS = ("500", "502", "503", "504")
"""Statuses of nginx's own responses when a pool has no replica for a request."""
_TS = "$lb_ts"
_MAX_TRIES = 16
_TENANT, _VARIANT, _COPIED = Token("$lb_tenant"), Token("$lb_variant"), Token("$lb_copied")
_PICK_TIME = Token("$lb_pick_time")
"""Seconds that the queries to the picker took, for a pool with a queue. The last value contains the wait."""


def traffic_name(view: View) -> Token:
    """Return the name of the traffic log's format."""
    return Token(names.own("lb_traffic", view.proxy))


def traffic_format(view: View) -> LogFormat:
    """Return the traffic log's format, which `lbctl.serve.traffic.log_line` reads.

    No value in it comes from a client.
    """
    tries = "$upstream_addr|$upstream_status|$upstream_header_time|$upstream_response_time"
    text = f"{view.proxy.name}|$lb_pool|$status|{tries}"
    return LogFormat(traffic_name(view), quote.script(text))


def traffic_server(view: View) -> Token | None:
    """Return the syslog server for the traffic log, or None."""
    if view.traffic_log is None:
        return None
    return quote.plain(f"syslog:server={view.traffic_log},nohostname,tag=lbctl", ("control", "logs", "bind"))


def formats(view: View, listener: Listener, number: int, request_id: str) -> LogFormat:
    """Return the log format of one listener.

    The listener's name is part of the text, so each listener has its own format.
    """
    name = Token(names.own(f"lb_log{number}", view.proxy))
    if listener.access_log.format == "text":
        text = (
            f"$lb_ts $remote_addr {listener.name} $lb_log_method $lb_log_path $status route=$lb_route pool=$lb_pool "
            f"replica=$lb_replica out=$body_bytes_sent time=$request_time id={request_id}"
        )
        return LogFormat(name, quote.script(text))
    return LogFormat(name, quote.script(_json(listener, request_id, view)))


def condition(context: RenderContext) -> Token | None:
    """Return the variable that is 0 for requests on routes without an access log; None if all routes have one."""
    silent = [name for name, route in context.view.routes.items() if not route.logged]
    if not silent:
        return None
    if not context.has_map(_LOGGED.text):
        entries = ((quote.plain(json.dumps(name)), Token("0")) for name in silent)
        context.map("$lb_route", _LOGGED.text, ((_DEFAULT, Token("1")), *entries))
    return _LOGGED


def variables(view: View) -> tuple[Token, ...]:
    """Return the variables that locations set in addition to route and pool, if the fleet needs them."""
    used = {
        _TENANT: any(route.auth is not None for route in view.routes.values()),
        _VARIANT: any(
            isinstance(each.action, Forward) and len(each.action.shares) > 1 for each in view.routes.values()
        ),
        _COPIED: any(isinstance(each.action, Forward) and each.action.mirror for each in view.routes.values()),
        _PICK_TIME: view.picker is not None and picker.has_queue(view),
    }
    return tuple(name for name, is_used in used.items() if is_used)


def _json(listener: Listener, request_id: str, view: View) -> str:
    fields = {
        "ts": '"$lb_ts"',
        "request_id": f'"{request_id}"',
        "client": '"$remote_addr"',
        "tenant": "$lb_log_tenant" if _TENANT in variables(view) else "null",
        "listener": f'"{listener.name}"',
        "method": "$lb_log_method",
        "path": "$lb_log_path",
        "route": "$lb_log_route",
        "pool": "$lb_log_pool",
        "variant": "$lb_log_variant" if _VARIANT in variables(view) else "null",
        "replica": "$lb_replica",
        "model": "$lb_log_model" if by_model(listener) else "null",
        "status": "$lb_log_status",
        "bytes_in": "$request_length",
        "bytes_out": "$body_bytes_sent",
        "t_queue": "$lb_t_queue" if _PICK_TIME in variables(view) else "null",
        "t_connect": "$lb_t_connect",
        "t_first_byte": "$lb_t_first_byte",
        "t_total": "$lb_t_total",
        "retries": "$lb_retries",
        "flags": "$lb_flags",
    }
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def maps(context: RenderContext) -> None:
    """Add the maps for the variables that the formats use."""
    day, zone, thousandths = (names.group(_TS, *each) for each in ((".{19}",), ("[^ ]*", "_zone"), ("[0-9]{3}", "_ms")))
    at = f"{names.captured(_TS)}.{names.captured(_TS, '_ms')}{names.captured(_TS, '_zone')}"
    entries = [(_DEFAULT, Token("$time_iso8601")), (quote.plain(rf"~^{day}{zone} \d+\.{thousandths}$"), _script(at))]
    context.map("$time_iso8601 $msec", _TS, entries)
    # In HTTP/2, the client chooses the method freely, even if nginx rejects it
    _text(context, "$request_method", "$lb_log_method", f"[{HARMLESS}]+")
    context.map("$upstream_status", "$lb_flags", [(_DEFAULT, _script('"$upstream_status"')), (Token('""'), _NULL)])
    _text(context, "$request_uri", "$lb_log_path", f"[{_HARMLESS_PATH}]+")
    used = variables(context.view)
    for name in ("route", "pool", *(["variant"] if _VARIANT in used else [])):
        context.map(f"$lb_{name}", f"$lb_log_{name}", [(_DEFAULT, Token(f"$lb_{name}")), (Token('""'), _NULL)])
    if _TENANT in used:
        context.map("$lb_tenant", "$lb_log_tenant", [(_DEFAULT, _script('"$lb_tenant"')), (Token('""'), _NULL)])
    if any(by_model(item) for item in context.view.listeners):
        _text(context, f"{MODEL_HEADER}{model_in_query(context)}", "$lb_log_model", f"[{HARMLESS}]+", r"\z")
    unknown = [(Token(f"{status}:"), _NULL) for status in ("000", "009")]
    left = (Token("400:"), Token("499"))  # a client that disconnects while it sends its body
    statuses = [(_DEFAULT, Token("$status")), *unknown, left]
    context.map("$status:$request_completion", "$lb_log_status", statuses)
    if _PICK_TIME in used:
        _milliseconds(context, _PICK_TIME.text, "$lb_t_queue")
    _milliseconds(context, "$upstream_connect_time", "$lb_t_connect")
    _milliseconds(context, "$upstream_header_time", "$lb_t_first_byte")
    _milliseconds(context, "$request_time", "$lb_t_total")
    _retries(context)
    _replicas(context)
    if context.view.traffic_log is not None:
        own_errors = [(Token(status), Token("1")) for status in _OWN_ERRORS]
        context.map("$status", "$lb_counted", [(_DEFAULT, Token("$upstream_addr")), *own_errors])


def _script(text: str) -> Token:
    return quote.script(text)


def _text(context: RenderContext, source: str, variable: str, pattern: str, end: str = "") -> None:
    """Add a map from a text to its matching beginning in quotes, or to null."""
    key = quote.plain(f"~^{names.group(variable, pattern)}{end}")
    context.map(source, variable, [(_DEFAULT, _NULL), (key, _script(f'"{names.captured(variable)}"'))])


def _milliseconds(context: RenderContext, source: str, variable: str) -> None:
    """Add a map from seconds with three decimals to milliseconds.

    nginx lists one time per attempt; the last one is used.
    """
    below_one = names.group(variable, "[0-9]+", "_part")
    seconds, thousandths = names.group(variable, "[0-9]+"), names.group(variable, "[0-9]{3}", "_ms")
    whole = f"{names.captured(variable)}{names.captured(variable, '_ms')}"
    entries = [
        (_DEFAULT, _NULL),
        (Token("0.000"), Token("0")),
        (quote.plain(rf"~(?:^|[ ,])0\.0{{0,2}}{below_one}$"), Token(names.captured(variable, "_part"))),
        (quote.plain(rf"~(?:^|[ ,]){seconds}\.{thousandths}$"), Token(whole)),
    ]
    context.map(source, variable, entries)


def _retries(context: RenderContext) -> None:
    most = _most_tries(context.view)
    further = [(quote.plain(rf"~^(?:[^ ]+(?: :)? ){{{n}}}[^ ]+$"), Token(str(n))) for n in range(1, most)]
    # expressions are not tried on an empty text
    none = [(Token('""'), Token("0")), (quote.plain("~^[^ ]+$"), Token("0"))]
    context.map("$upstream_addr", "$lb_retries", [(_DEFAULT, Token(str(most))), *none, *further])


def _most_tries(view: View) -> int:
    """Return the maximum number of attempts per request. A fallback tries each replica of two pools."""
    actions = [route.action for route in view.routes.values()]
    if any(isinstance(action, Forward) and action.fallback for action in actions):
        return _MAX_TRIES
    tries = ((1 + item.retry.attempts) * (2 if item.retry.busy_statuses else 1) for item in view.routes.values())
    return min(_MAX_TRIES, max(tries, default=1) + (view.picker is not None))


def _replicas(context: RenderContext) -> None:
    last = "$lb_last_address"
    entry = quote.plain(f"~ {names.group(last, '[^ ]+')}$"), Token(names.captured(last))
    context.map("$upstream_addr", last, [(_DEFAULT, Token("$upstream_addr")), entry])
    entries: dict[str, tuple[Token, Token]] = {}
    for pool in context.view.pools.values():
        for replica, key in _replica_keys(pool):
            path = ("pools", pool.name, "replicas", replica.name)
            entries.setdefault(key.lower(), (quote.plain(key), _entry(replica.name, path)))
    context.map("$lb_pool $lb_last_address", "$lb_replica", [(_DEFAULT, _NULL), *entries.values()])


def _replica_keys(pool: Pool) -> Iterator[tuple[Replica, str]]:
    """Yield the replicas with the key that identifies them in a logged upstream address.

    The key is the address. For a replica with a host name it is the port, because nginx logs only the resolved address.
    Replicas with host names have no key if several of them use the same port.
    """
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

"""HAProxy's logs: the access log, timers for `serve`, and reports of ended requests for the picker.

Timers and ended requests are reported by syslog, as structured data (RFC 5424), of which a section can have only one.
The access log entry after it is truncated. The structured data contains no values from clients.
`lbctl.serve.traffic.timer_line` and `lbctl.picker.http_api` read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Listener
from lbctl.ir.rollout_metrics import measured
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.features import BY_ID
from lbctl.targets.haproxy import pick, quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_TARGETS = {"/dev/stdout": "stdout", "/dev/stderr": "stderr"}
"""Maps the path of each access log to HAProxy's log target."""
UNLOGGED = "http-request set-log-level debug"
"""Log level of requests without an access log: above the log's own level, but not above the level of reports."""
_SAMPLE = " sample 1,4,9,12,17,22:23"
"""Samples about one in four requests. Sampling exactly every fourth request would always pick the same one of two or
four replicas."""
_LENGTH = 700
"""Maximum length of a report in bytes. The structured data is shorter."""


def lines(listener: Listener, view: View) -> Iterator[Token]:
    """Yield a frontend's directives for its access log and reports."""
    has_access_log = listener.access_log.format != "none"
    if has_access_log:
        target = _TARGETS.get(listener.access_log.path or "", "stdout")
        path = ("listeners", listener.name, "access_log")
        yield line(f"log {target} len 65535 format raw local0 info", source=path)
        yield from _formats(listener, view)
    reports = _reports(listener, view)
    yield from reports
    if reports and not has_access_log:
        yield line("log-format '-'")
        yield line("error-log-format '-'")


def path(listener: Listener) -> Token:
    """Return the line that saves the path for the access log, before a rule changes it."""
    plain = "" if listener.access_log.format == "json" else r',regsub("\\\\/","/",g)'
    noted = quote.word(f'"%[path,json(utf8s){plain}]"')
    return line("http-request set-var-fmt(txn.path_json)", noted, "if { path,length gt 0 }")


def diagnostics(listener: Listener) -> Iterator[Diagnostic]:
    """Yield a warning if the access log is a file."""
    log, path = listener.access_log, ("listeners", listener.name, "access_log", "path")
    if log.format != "none" and log.path not in (None, *_TARGETS):
        message = "HAProxy writes no log files; this access log goes to /dev/stdout"
        yield Diagnostic(BY_ID["listener.access_log"].code, message, path=path, severity="warning")


def _formats(listener: Listener, view: View) -> Iterator[Token]:
    """Yield the formats of the access log."""
    name, waits = quote.name(listener.name).text, pick.may_wait(listener, view)
    if listener.access_log.format == "text":
        yield line("log-format", quote.word(_text(name, waits=waits)))
        return
    fields = _json_fields(name, waits=waits)
    of_client = ("client", "listener", "bytes_in", "bytes_out", "flags")
    without_request = {**dict.fromkeys(fields, "null"), **{field: fields[field] for field in of_client}}
    without_request |= {"ts": f'"{_time("date(0,ms)")}"', "status": "%ST"}
    yield line("log-format", quote.word(_json(fields)))
    yield line("error-log-format", quote.word(_json(without_request)))


def _text(listener: str, *, waits: bool) -> str:
    return " ".join(
        (
            f'"{_time("var(txn.start)")}"',
            "%ci",
            listener,
            '"%HM"',
            "%[var(txn.path_json,-)]",
            "%[var(txn.status,499)]",
            "route=%[var(txn.route,-)]",
            "pool=%[var(txn.pool,-)]",
            "replica=%[var(txn.replica,-)]",
            "in=%U",
            "out=%B",
            f"queue={_queue_time('-', '-', waits=waits)}",
            "connect=%[var(txn.tries,-/-),field(2,/),regsub(-1,-)]",
            "first_byte=%[var(txn.t_first_byte,-)]",
            "total=%Ta",
            "retries=%[var(txn.tries,-/-/-),field(3,/),ltrim(+)]",
            "flags=%tsc",
            'request_id="%[var(txn.request_id)]"',
        )
    )


def _json(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def _json_fields(listener: str, *, waits: bool) -> dict[str, str]:
    """Map each field to its value as JSON, in the order of the access log."""
    return {
        "ts": f'"{_time("var(txn.start)")}"',
        "request_id": '"%[var(txn.request_id)]"',
        "client": '"%ci"',
        "tenant": "%[var(txn.tenant_json,null)]",
        "listener": f'"{listener}"',
        "method": '"%HM"',
        "path": "%[var(txn.path_json,null)]",
        "route": "%[var(txn.route_json,null)]",
        "pool": "%[var(txn.pool_json,null)]",
        "variant": "%[var(txn.variant,null)]",
        "replica": "%[var(txn.replica,null)]",
        "model": "%[var(txn.model_json,null)]",
        "status": "%[var(txn.status,499)]",
        "bytes_in": "%U",
        "bytes_out": "%B",
        "t_queue": _queue_time("-1/-1/0", "null", waits=waits),
        "t_connect": "%[var(txn.tries,-1/-1/0),field(2,/),regsub(-1,null)]",
        "t_first_byte": "%[var(txn.t_first_byte,null)]",
        "t_total": "%[date(0,ms),sub(txn.start)]",
        "retries": "%[var(txn.tries,-1/-1/null),field(3,/),ltrim(+)]",
        "flags": '"%tsc"',
    }


def _queue_time(unknown: str, nothing: str, *, waits: bool) -> str:
    """Return the queue time, or `nothing` if it is unknown. `waits`: requests may also wait at the picker.

    `unknown` is the default value of the variable that stores the times, which HAProxy sets for a response.
    """
    if waits:
        return f"%[var({pick.QUEUE_TIME},{nothing})]"
    return f"%[var(txn.tries,{unknown}),field(1,/),regsub(-1,{nothing})]"


def _time(milliseconds: str) -> str:
    """Return the time of a sample, in milliseconds since 1970, in the format of RFC 3339."""
    digits = "".join(f"%[{milliseconds},{divided}mod(10)]" for divided in ("div(100),", "div(10),", ""))
    return f"%[{milliseconds},div(1000),utime(%Y-%m-%dT%H:%M:%S)].{digits}Z"


def _reports(listener: Listener, view: View) -> tuple[Token, ...]:
    """Return the directives for reports; empty if neither `serve` nor the picker needs them."""
    ends = pick.is_used(listener, view)
    logs = []
    if view.traffic_log is not None:
        part = "" if measured(view.routes.values()) else _SAMPLE
        logs.append(_log(view, quote.address(view.traffic_log, ("control", "logs", "bind")), part))
    if ends:
        logs.append(_log(view, quote.address(picker.http_address(view))))
    return (*logs, line("log-format-sd", quote.word(_structured_data(view, ends=ends)))) if logs else ()


def _log(view: View, receiver: Token, part: str = "") -> Token:
    return line("log", receiver, f"len {_LENGTH} format rfc5424{part} local0 {_level(view)}")


def _level(view: View) -> str:
    """Return the level up to which requests are reported, including requests that the access log omits."""
    return "info" if all(route.logged for route in view.routes.values()) else "debug"


def _structured_data(view: View, *, ends: bool) -> str:
    fields = {"proxy": view.proxy.name, "backend": "%b", "status": "%ST", "end": "%ts"}
    if view.traffic_log is not None:
        fields["server"] = "%s"
        fields["timers"] = "%Tw %Tc %Tr %Td %Ta"
    if ends:
        fields["retries"] = "%rc"
        fields["pick"] = "%[var(txn.pick_id)]"
    return "[lbctl@0 " + " ".join(f'{name}="{value}"' for name, value in fields.items()) + "]"

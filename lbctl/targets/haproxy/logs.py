"""HAProxy's reports by syslog, in addition to the access log: timers for `serve`, ends of requests for the picker.

Both are in the structured data of RFC 5424, of which a section has one; the access log that follows it is cut off. No
value in it comes from a client. `lbctl.serve.traffic.timer_line` and `lbctl.picker.http_api` read it.
"""

from __future__ import annotations

from lbctl.ir.latencies import measured
from lbctl.ir.listeners import Listener
from lbctl.ir.snapshot import View
from lbctl.targets import picker
from lbctl.targets.haproxy import pick, quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

UNLOGGED = "http-request set-log-level debug"
"""The level of requests without access log, which is above that of the log and not above that of the reports."""
_SAMPLE = " sample 1,4,9,12,17,22:23"
"""About one request of four. By turns every fourth would always go to the same replica of two or four."""
_LENGTH = 700
"""Bytes of a report; the structured data is shorter."""


def lines(listener: Listener, view: View) -> tuple[Token, ...]:
    """Return the directives of a frontend, none where nobody needs reports."""
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
    """Return the level up to which requests are reported: beside those of the log, those that it leaves out."""
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

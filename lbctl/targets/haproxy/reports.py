"""What HAProxy reports of each request by syslog, beside the access log: timers for rollouts, ends for the picker.

Both are in the structured data of RFC 5424, of which a section has one; the access log that follows it is cut off. No
value in it comes from a client. `lbctl.serve.traffic.timer_line` and `lbctl.serve.picker.http_api` read it.
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
_LENGTH = 700
"""Bytes of a report; the structured data is shorter."""


def lines(listener: Listener, view: View) -> tuple[Token, ...]:
    """Return the directives of a frontend, none where nobody needs reports."""
    times, ends = _times(view), pick.is_used(listener, view)
    receivers = []
    if times and view.traffic_log is not None:
        receivers.append(quote.address(view.traffic_log, ("control", "logs", "bind")))
    if ends:
        receivers.append(quote.address(picker.http_address(view)))
    if not receivers:
        return ()
    logs = (line("log", receiver, f"len {_LENGTH} format rfc5424 local0 {_level(view)}") for receiver in receivers)
    return (*logs, line("log-format-sd", quote.word(_structured_data(view, times=times, ends=ends))))


def _level(view: View) -> str:
    """Return the level up to which requests are reported: beside those of the log, those that it leaves out."""
    return "info" if all(route.logged for route in view.routes.values()) else "debug"


def _times(view: View) -> bool:
    """Return whether a rollout is judged by latencies."""
    return view.traffic_log is not None and bool(measured(view.routes.values()))


def _structured_data(view: View, *, times: bool, ends: bool) -> str:
    fields = {"proxy": view.proxy.name, "backend": "%b", "status": "%ST", "end": "%ts"}
    if times:
        fields["timers"] = "%Tw %Tc %Tr %Td %Ta"
    if ends:
        fields["retries"] = "%rc"
        fields["pick"] = "%[var(txn.pick_id)]"
    return "[lbctl@0 " + " ".join(f'{name}="{value}"' for name, value in fields.items()) + "]"

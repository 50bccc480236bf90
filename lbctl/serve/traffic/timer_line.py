"""A line of the traffic log that an HAProxy sends over syslog: a request's destination and latency.

HAProxy's requests are counted through its Runtime API, which does not provide the latencies of individual requests.
HAProxy therefore logs each request's timers in RFC 5424 structured data, which precedes the listener's truncated access
log. Any user on this machine can send such lines, so a line that does not exactly match lbctl's format is ignored. The
functions are pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(
    rb"<[0-9]{1,3}>1 [0-9T:.+Z-]{20,40} [!-~]{1,255} [!-~]{1,48} [!-~]{1,128} [!-~]{1,32} "
    rb"\[lbctl@0 proxy=\"([A-Za-z0-9._-]{1,128})\" backend=\"([^\"\\\]]{1,300})\" status=\"(-?[0-9]{1,3})\" "
    rb"end=\"([A-Za-z-]{2,4})\"(?: server=\"([^\"\\\]]{1,300})\")? "
    rb"timers=\"((?:[+]?-?[0-9]{1,10} ){4}[+]?-?[0-9]{1,10})\""
    rb"(?: retries=\"\+?[0-9]{1,10}\" pick=\"[0-9a-z-]{0,48}\")?\](?: .*)?",
    re.DOTALL,
)
_SAYS_NOTHING = 400
"""Lowest status of a response whose latency does not reflect the pool's speed."""
_CLIENT_LEFT = ("C", "c")


class Timers(NamedTuple):
    """Contents of one line."""

    proxy: str
    backend: str
    """Backend that received the request."""
    server: str
    """Server used in the last try; `<NOSRV>` if there was none, and empty if the line does not contain it."""
    first_byte: float | None
    """Milliseconds until the response started, including time spent in the queue, or until the client disconnected if
    that was earlier. None if the request failed or its status is 400 or higher."""
    total: float | None
    """Milliseconds until the response ended."""
    answered: bool = True
    """Whether the response has started."""


def timers_of(line: bytes) -> Timers | None:
    """Parse a line; return None if it is not valid."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    proxy, backend, status, end, server, timers = (part.decode("latin-1") for part in match.groups(b""))
    wait, connect, response, data, active = (int(part) for part in timers.replace("+", "").split())
    if response < 0:
        left = float(active) if end.startswith(_CLIENT_LEFT) and active >= 0 else None
        return Timers(proxy, backend, server, left, left, answered=False)
    if int(status) >= _SAYS_NOTHING:
        return Timers(proxy, backend, server, None, None)
    first_byte = float(max(0, wait) + max(0, connect) + response)
    return Timers(proxy, backend, server, first_byte, first_byte + max(0, data))

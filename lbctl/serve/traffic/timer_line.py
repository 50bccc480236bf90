"""One line of the traffic log that a HAProxy sends over syslog: the destination and the latency of a request.

HAProxy's requests are counted through its Runtime API, which does not provide latencies of single requests. Therefore,
HAProxy logs the timers of each request in the structured data of RFC 5424, in front of the listener's access log, which
is truncated. Any user of this machine can send such lines, so a line that does not exactly match lbctl's format is
ignored. Pure.
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
"""The lowest status of a response whose latency does not reflect the pool's speed."""
_CLIENT_LEFT = ("C", "c")


class Timers(NamedTuple):
    """The content of one line."""

    proxy: str
    backend: str
    """The backend that received the request."""
    server: str
    """The server of the last try; `<NOSRV>` if there was none, empty if the line does not contain it."""
    first_byte: float | None
    """Milliseconds until the response began, including the time in the queue, or until the client disconnected, if that
    was earlier. None if the request failed, or if its status is 400 or above."""
    total: float | None
    """Milliseconds until the response ended."""
    answered: bool = True
    """Whether the response has begun."""


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

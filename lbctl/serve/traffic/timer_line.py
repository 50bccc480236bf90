"""One line of the traffic log that a HAProxy sends by syslog: where a request went to, and how long it took.

HAProxy's requests are counted by its Runtime API, which knows no latencies of single requests. So it logs the timers of
each request in the structured data of RFC 5424, before the access log of the listener, which is cut off. Anybody on
this machine can send such lines: what is not exactly in the form that lbctl renders does not count. Pure.
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
"""The status from which on an answer says nothing about how fast a pool works."""
_CLIENT_LEFT = ("C", "c")


class Timers(NamedTuple):
    """What one line says."""

    proxy: str
    backend: str
    """The backend that the request went to."""
    server: str
    """The server of the last try; `<NOSRV>` where there was none, empty where the line does not have it."""
    first_byte: float | None
    """Milliseconds until the answer began, with the time in the queue; until the client left, where that was before.
    None where the line says nothing about how fast the pool works: it failed, or has a status of 400 or more."""
    total: float | None
    """The same until the answer ended."""
    answered: bool = True
    """Whether the answer has begun."""


def timers_of(line: bytes) -> Timers | None:
    """Return what a line says; None where it is not one."""
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

"""Finds out whether another process has the address of the picker.

The proxies of this control plane must not ask there: it may be the picker of another `lbctl serve`, which would choose
among the replicas of another fleet and count requests that it does not have.
"""

from __future__ import annotations

import errno
import socket

from lbctl.apply.listening_sockets import bind_error, listening_sockets, owner
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_http


def taken_by(bind: Address) -> str:
    """Return which process has one of the ports of a picker at `bind`, or an empty string if all are free."""
    http = picker_http(bind)
    for place, kind in ((bind, socket.SOCK_STREAM), (http, socket.SOCK_STREAM), (http, socket.SOCK_DGRAM)):
        error = bind_error(place, kind)
        if error is not None and error.errno == errno.EADDRINUSE:
            pid = owner(listening_sockets(place.port) or ()) if kind is socket.SOCK_STREAM else None
            transport = "" if kind is socket.SOCK_STREAM else " (UDP)"
            return f"{f'process {pid}' if pid else 'another process'} has {place}{transport}"
    return ""

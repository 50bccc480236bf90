"""The toy proxy reads a request unchanged."""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import reading as r


def read(message: r.Message, listener: Listener, version: r.Version) -> Request | r.Refusal:
    del listener, version
    return Request(message.method, r.host_of(message), message.path, r.headers(message), None)

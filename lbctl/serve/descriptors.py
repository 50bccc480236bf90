"""File descriptors: as many as the process may have, and one line a minute when they are used up."""

from __future__ import annotations

import asyncio
import errno
import resource
import time
from typing import Any

from lbctl.base.errors import reason_of
from lbctl.serve import log

_WANTED = 65_536
"""Enough for thousands of Envoys. Not more: children inherit it, and HAProxy reserves memory for each."""
_SAID_AGAIN = 60.0
_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit() -> None:
    """The soft limit of this process, towards its hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class AcceptErrors:
    """An exception handler of a loop. The loop itself says for each connection of its backlog that it cannot accept."""

    def __init__(self) -> None:
        self._said = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _USED_UP and "accept" in str(context.get("message"))):
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now >= self._said + _SAID_AGAIN:
            self._said = now
            log.error("connections cannot be accepted; said once a minute", reason=reason_of(error))

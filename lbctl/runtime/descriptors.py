"""Raises the limit on open file descriptors, and logs at most once per minute that they are exhausted."""

from __future__ import annotations

import asyncio
import errno
import resource
import time
from typing import Any

from lbctl.base.errors import reason_of
from lbctl.runtime import log

_SOFT_LIMIT = 65_536
"""This limit is enough for thousands of Envoys. A higher limit would cost memory, because child processes inherit it
and HAProxy reserves memory for each descriptor."""
_LOG_INTERVAL = 60.0
"""Seconds between log lines."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_limit() -> None:
    """Raise the soft limit of this process to 65,536, or to its hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _SOFT_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _SOFT_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class AcceptErrors:
    """An event-loop exception handler that limits log lines about connections that cannot be accepted.

    Without this handler, the loop would log an error for every connection in its backlog.
    """

    def __init__(self) -> None:
        self._logged_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle one error from the loop, with the arguments of asyncio's exception handlers."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED and "accept" in str(context.get("message"))):
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now >= self._logged_at + _LOG_INTERVAL:
            self._logged_at = now
            log.error("connections cannot be accepted (this is logged at most once a minute)", reason=reason_of(error))

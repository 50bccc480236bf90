"""Logs requests that are not valid HTTP, without their content."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

_LOG_INTERVAL = 10.0
"""Minimum time between two log lines, in seconds."""


class InvalidRequests(logging.Filter):
    """Replaces aiohttp's error for an invalid HTTP request, which quotes a line that may contain a token.

    Such an error is logged at most once every `_LOG_INTERVAL` seconds. `server` names the server in the log line.
    """

    def __init__(self, server: str) -> None:
        super().__init__()
        self._message = f"{server} rejected a request that is not valid HTTP"
        self._logged_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record, and replace its message."""
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            if record.created < self._logged_at + _LOG_INTERVAL:
                return False
            self._logged_at = record.created
            record.msg, record.args, record.exc_info = self._message, (), None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True

"""The control plane's log: one line per event on standard error, in the form `time level message key=value …`, in UTC.

Each event is a single line: non-printable characters are escaped, and the traceback of an lbctl error is one value. The
contents of key files, tokens and certificates are never logged.
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TextIO

from lbctl.base.diagnostics import Diagnostic, Severity
from lbctl.base.urls import without_user

_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}
_SEVERITIES: dict[Severity, int] = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
_BARE = re.compile(r"[!#-<>-~]+", re.ASCII)
"""Pattern for values that do not need quotes."""
_REMINDER = 300.0
"""Seconds between log lines about an ongoing failure."""


def start(stream: TextIO) -> logging.Handler:
    """Log lbctl's events, as well as warnings and errors from libraries, to `stream`.

    Pass the returned handler to `stop`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("lbctl").setLevel(logging.INFO)
    return handler


def stop(handler: logging.Handler) -> None:
    """Stop logging to the handler that `start` returned."""
    logging.getLogger().removeHandler(handler)


def event(message: str, level: int = logging.INFO, **fields: object) -> None:
    """Log an event, by default at level info. Fields that are None are omitted."""
    logging.getLogger("lbctl.serve").log(level, "%s", message, extra={"fields": fields})


def warn(message: str, **fields: object) -> None:
    """Log a warning. Fields that are None are omitted."""
    event(message, logging.WARNING, **fields)


def error(message: str, **fields: object) -> None:
    """Log an error. Fields that are None are omitted."""
    event(message, logging.ERROR, **fields)


def failure(message: str, **fields: object) -> None:
    """Log an error in lbctl itself, with the traceback of the exception that is being handled."""
    logging.getLogger("lbctl.serve").error("%s", message, extra={"fields": fields}, exc_info=True)


def findings(diagnostics: Iterable[Diagnostic]) -> None:
    """Log each diagnostic on a separate line, with its severity as the level."""
    for item in diagnostics:
        event(str(item).removeprefix(f"{item.severity} "), _SEVERITIES[item.severity])


class LastingFailure:
    """Logs a repeated operation's failure: when it begins, every five minutes while it continues, and when it ends.

    A failure with a different message is logged immediately. `clock` returns seconds.
    """

    def __init__(self, end: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`end` is logged on the first success after a failure."""
        self._end = end
        self._clock = clock
        self._message = ""
        self._logged_at = 0.0

    def failed(self, message: str) -> None:
        """Record a failed attempt."""
        now = self._clock()
        if message != self._message or now - self._logged_at >= _REMINDER:
            self._message, self._logged_at = message, now
            error(message)

    def succeeded(self) -> None:
        """Record a successful attempt."""
        if self._message:
            self._message = ""
            event(self._end)


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        fields = {name: value for name, value in getattr(record, "fields", {}).items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        pairs = (f"{name}={_value(value)}" for name, value in fields.items())
        return without_user(" ".join([when, level, _line(record.getMessage()), *pairs]))


def _line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())

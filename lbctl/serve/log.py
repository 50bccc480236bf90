"""The log of the control plane: one line per event on standard error, as `time level message key=value …`, in UTC.

Each event stays one line: characters that are not printable are escaped, and the traceback of an error of lbctl is one
value. The content of key files, tokens and certificates is never logged.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

from lbctl.base.diagnostics import Diagnostic, Severity

_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}
_SEVERITIES: dict[Severity, int] = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
_BARE = re.compile(r"[!#-<>-~]+", re.ASCII)
"""Matches a value that needs no quotes."""


def start(stream: TextIO) -> logging.Handler:
    """Log events of lbctl, and warnings and errors of libraries, to `stream`. `stop` takes the returned handler."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("lbctl").setLevel(logging.INFO)
    return handler


def stop(handler: logging.Handler) -> None:
    """Stop logging to the handler that `start` has returned."""
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
    """Log an error of lbctl itself, with the traceback of the exception that is being handled."""
    logging.getLogger("lbctl.serve").error("%s", message, extra={"fields": fields}, exc_info=True)


def findings(diagnostics: Iterable[Diagnostic]) -> None:
    """Log each diagnostic as a line of its own; the level of the line is the severity of the diagnostic."""
    for item in diagnostics:
        event(str(item).removeprefix(f"{item.severity} "), _SEVERITIES[item.severity])


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        fields = {name: value for name, value in getattr(record, "fields", {}).items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        pairs = (f"{name}={_value(value)}" for name, value in fields.items())
        return " ".join([when, level, _line(record.getMessage()), *pairs])


def _line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())

"""The control plane's log: one line an event on standard error, `time level message key=value …`, times in UTC.

Whatever happens stays one line: what is not printable is escaped, an error of ours brings its traceback as one value.
Nothing that stands in a key file, a token or a certificate is ever handed to it.
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
"""A value that needs no quotes."""


def start(stream: TextIO) -> logging.Handler:
    """Sends what the program logs to `stream`; of the libraries, warnings and worse. `stop` it in the end."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("lbctl").setLevel(logging.INFO)
    return handler


def stop(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)


def event(message: str, level: int = logging.INFO, **fields: object) -> None:
    """One line. A field that is None is left out."""
    logging.getLogger("lbctl.serve").log(level, "%s", message, extra={"fields": fields})


def warn(message: str, **fields: object) -> None:
    event(message, logging.WARNING, **fields)


def error(message: str, **fields: object) -> None:
    event(message, logging.ERROR, **fields)


def failure(message: str, **fields: object) -> None:
    """An error of ours, with the exception that is being handled."""
    logging.getLogger("lbctl.serve").error("%s", message, extra={"fields": fields}, exc_info=True)


def findings(diagnostics: Iterable[Diagnostic]) -> None:
    """Each as its own line, as the commands show it; a line begins with its level anyhow."""
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

"""The JSON body of every answer that a proxy gives by itself.

It has the fields that the SDKs of OpenAI read: `message`, `type`, `param` and `code`. `code` repeats `type`, since
clients branch on either.
"""

from __future__ import annotations

import json


def error_body(message: str, kind: str) -> str:
    """Return the body as one line of JSON; the arguments are lbctl's own text."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}}, separators=(",", ":"))


NO_REPLICA = error_body("no replica available", "unavailable")
NO_ROUTE = error_body("no route", "not_found")

"""The JSON body of every answer that a proxy gives by itself.

It has the fields that the SDKs of OpenAI read: `message`, `type`, `param` and `code`. `code` repeats `type`, since
clients branch on either; only that of an unknown model is the one that OpenAI's API has for it.
"""

from __future__ import annotations

import json


def error_body(message: str, kind: str) -> str:
    """Return the body as one line of JSON; the arguments are lbctl's own text."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": kind}}, separators=(",", ":"))


NO_REPLICA = error_body("no replica available", "unavailable")


def model_not_found(message: str) -> str:
    """Return the body for a request that a route would take, were it not for the model."""
    error = {"message": message, "type": "not_found", "param": "model", "code": "model_not_found"}
    return json.dumps({"error": error}, separators=(",", ":"))


NO_ROUTE = error_body("no route", "not_found")
NO_MODEL = model_not_found("the request names no model: a JSON body names it in `model`, or the header x-model does")
UNKNOWN_MODEL = model_not_found("no route takes this model")
